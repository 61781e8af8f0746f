"""What tests of commands share."""

import json

import pytest
from support.paths import GOLDEN

ORACLES = GOLDEN / "explain"  # scenarios worked by hand
known = {}  # explanations by their arguments; a scenario in the repository is explained once


@pytest.fixture
def printed(run):
    """The JSON that a command prints."""

    def printed(*arguments):
        code, out, errors = run(*arguments, "--json")
        assert code == 0, errors
        return json.loads(out)

    return printed


@pytest.fixture
def explained(printed):
    """The JSON of `explain`."""

    def explained(*arguments):
        if arguments not in known:
            known[arguments] = printed("explain", *arguments)
        return known[arguments]

    return explained
