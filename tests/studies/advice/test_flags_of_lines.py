"""The flags that a line of advice changes, made in the launch line and read back by `init`, give the line's plan."""

from itertools import count, islice
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.megatron_jobs import changed_line, megatron_job, read_back

from hybrid_des import advise
from hybrid_des.errors import HybridDesError
from hybrid_des.interchange.frameworks import megatron
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from

EACH = (14, 22, 52)  # a pipeline that ends, and two layouts of a single replica
MANY = 40 * TIMES
SCRIPT = (  # a 13B on 32 GPUs, as scripts start it
    "torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 "
    "--num-attention-heads 40 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 "
    "--make-vocab-size-divisible-by 1 "
    "--swiglu --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights "
    "--disable-bias-linear --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel "
    "--micro-batch-size 1 --global-batch-size 256 --bf16 --use-flash-attn --recompute-activations "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
)


def lines_of(number):
    """The launch line of a random job; None if the draw is none that Megatron-LM starts."""
    try:
        launch = megatron(scenario_from(megatron_job(Random(number))))
    except HybridDesError:
        return None
    return None if launch.unsaid or launch.refused else f"{launch.program} {' '.join(launch.flags)}"


def read_of_each(line):
    """How many lines of advice on a launch line have flags; each is followed."""
    followed = 0
    for proposed in advise(read_back(line)).lines:
        if any(remark.startswith("not in ") for remark in proposed.remarks):
            continue
        again = to_mapping(scenario_from(read_back(changed_line(line, proposed.flags))))
        assert again | {"description": ""} == to_mapping(proposed.scenario) | {"description": ""}, proposed.change
        followed += 1
    return followed


@pytest.mark.parametrize("number", thinned(EACH, slow=[22]))
def test_changed_flags_give_the_plan_of_a_line(number):
    assert read_of_each(lines_of(number))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(5))
def test_changed_flags_give_the_plans_of_many_lines(batch):
    drawn = list(islice(filter(None, map(lines_of, count(1000 * batch))), MANY // 5))
    assert sum(map(read_of_each, drawn)) > len(drawn)


@pytest.mark.slow
def test_changed_flags_of_a_script_give_its_plans():
    assert read_of_each(SCRIPT) >= 2
