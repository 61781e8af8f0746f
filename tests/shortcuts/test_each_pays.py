"""Each shortcut saves events on what people run."""

import pytest
from benchmarks.ablation import ABLATIONS, measured


@pytest.mark.slow
@pytest.mark.parametrize("ablation", ABLATIONS, ids=[one.name for one in ABLATIONS])
def test_a_run_takes_fewer_events_with_it(ablation):
    (events, _), (without, _) = (measured(ablation, without=out) for out in (False, True))
    assert events < without
