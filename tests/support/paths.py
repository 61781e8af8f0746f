"""Where things are in a checkout."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "hybrid_des"
SCENARIOS = ROOT / "scenarios"
NOTEBOOKS = ROOT / "notebooks"
GOLDEN = TESTS / "golden"
SHARED = Path(os.environ.get("HYBRID_DES_SHARED", ROOT.parent / "shared"))  # data that is not part of the project
