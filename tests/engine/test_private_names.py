"""What SimPy keeps private is used in `engine/` and nowhere else."""

import re

import pytest
from support.paths import PACKAGE

PRIVATE = re.compile(r"\b(_now|_queue|_eid|_ok|_value|_defused|_active_proc|NORMAL|URGENT|PENDING)\b")
FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_private_names_of_simpy_occur_in_engine_only(file):
    if file.relative_to(PACKAGE).parts[0] != "engine":
        assert not PRIVATE.findall(file.read_text(encoding="utf-8"))


def test_engine_is_where_the_pattern_finds_them():
    found = {name for file in (PACKAGE / "engine").glob("*.py") for name in PRIVATE.findall(file.read_text())}
    assert {"_ok", "_value", "NORMAL"} <= found
