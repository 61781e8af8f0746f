"""What SimPy keeps private is used in `engine/` and nowhere else."""

import re

from support.paths import PACKAGE

PRIVATE = re.compile(r"\b(_now|_queue|_eid|_ok|_value|_defused|_active_proc|NORMAL|URGENT|PENDING)\b")


def test_private_names_of_simpy_occur_in_engine_only():
    found = {file.relative_to(PACKAGE): set(PRIVATE.findall(file.read_text())) for file in PACKAGE.rglob("*.py")}
    inside = set().union(*(names for file, names in found.items() if file.parts[0] == "engine"))
    assert {"_ok", "_value", "NORMAL"} <= inside  # the pattern finds what it looks for
    assert {str(file): names for file, names in found.items() if names and file.parts[0] != "engine"} == {}
