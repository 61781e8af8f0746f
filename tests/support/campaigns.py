"""How many random cases a test draws: few in the suite, and N times as many where `HYBRID_DES_TIMES=N` is set."""

import os

TIMES = int(os.environ.get("HYBRID_DES_TIMES", "1"))
