"""The shipped scenarios of published models, up to 1,024 GPUs, run and fit into memory."""

import pytest
from support.paths import SCENARIOS

from hybrid_des import load, simulate

pytestmark = pytest.mark.slow

MODELS = [file for file in sorted(SCENARIOS.glob("*.yaml")) if "\nmodel: " in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.stem)
def test_a_shipped_model_fits_into_memory(file):
    """With as many micro-batches as fill the pipeline."""
    whole = load(file)
    few = min(whole.schedule.microbatches, 2 * whole.parallel.pipeline)
    samples = few * whole.schedule.microbatch_size * whole.parallel.data
    size = f"schedule.microbatches={few}" if whole.batch is None else f"batch={samples}"
    assert not simulate(load(file, [size, "record=none"])).summary["out_of_memory"]
