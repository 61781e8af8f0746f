"""What tests of scenarios share."""

import pytest

from hybrid_des import load
from hybrid_des.errors import ScenarioError


@pytest.fixture
def problems(write):
    """What is wrong with a scenario file, line by line, without the file's name."""

    def problems(text, *overrides):
        file = write(text)
        with pytest.raises(ScenarioError) as error:
            load(file, overrides)
        assert str(error.value) == "\n".join(error.value.problems)
        return [line.replace(f"{file}:", "") for line in error.value.problems]

    return problems
