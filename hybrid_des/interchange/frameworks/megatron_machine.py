"""How many GPUs a launch line of Megatron-LM takes: nodes, GPUs per node, replicas.

torchrun starts `--nproc-per-node` processes, one per GPU (docs.pytorch.org/docs/stable/elastic/run.html); `gpu` and
`auto` are all that the node has. `--gres=gpu:8`, `--gpus-per-node=h100:8` say what a node has, `--ntasks-per-node` how
many processes SLURM starts (slurm.schedmd.com/sbatch.html): one, where that starts the others.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from hybrid_des.interchange.frameworks.launch_line import Given

_NODES = ("--nnodes", "--nodes", "--num-nodes", "--num-machines")
_STARTED = ("--nproc-per-node", "--num-gpus", "--npernode")
_HELD = ("--gres", "--gpus-per-node")
_GRES = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,4})(?:\(.*\))?")


class Machine(NamedTuple):
    """Nodes and GPUs per node; None where the line does not say. `said`: what was chosen of several numbers."""

    nodes: int | None
    per_node: int | None
    said: tuple[str, ...] = ()


def machine(given: Given) -> Machine:
    """The GPUs that a line takes.

    Raises:
        UsageError: a number is none.
    """
    nodes, (per_node, said) = _nodes(given), _per_node(given)
    ranks = next(iter(given.words("--ntasks")), "")
    if nodes is None and re.fullmatch(r"[1-9]\d{0,5}", ranks) and per_node is not None:  # mpirun -np 64 --npernode 8
        nodes = -(-int(ranks) // per_node)
    stated = {flag: word for flag in _NODES if (word := next(iter(given.words(flag)), "")).isdigit()}
    if len({*stated.values()}) > 1:
        said = (*said, f"cluster.nodes: {nodes}: of {', '.join(' '.join(pair) for pair in stated.items())}")
    return Machine(nodes, per_node, said)


def _nodes(given: Given) -> int | None:
    for flag in _NODES:
        word = next(iter(given.words(flag)), "")
        if match := re.fullmatch(r"(\d{1,6})[-:]\1", word):  # torchrun's least and most
            return int(match[1])
    return given.number(*_NODES)


def _per_node(given: Given) -> tuple[int | None, tuple[str, ...]]:
    held = next((size for flag in _HELD if (size := _gpus(given, flag)) is not None), None)
    all_of_them = any(next(iter(given.words(flag)), "") in ("gpu", "auto") for flag in _STARTED)
    if all_of_them and held is None:
        flag = next(flag for flag in _STARTED if flag in given)
        raise given.error(flag, "all GPUs of a node; expected their number, here or in --gres=gpu:8")
    started = None if all_of_them else given.number(*_STARTED)
    tasks = given.number("--ntasks-per-node", "--tasks-per-node")
    if started is None and tasks is not None and tasks > 1:
        started = tasks
    per_node = next((size for size in (started, held, tasks) if size is not None), None)
    return per_node, tuple(_said(started, held))


def _said(started: int | None, held: int | None) -> Iterator[str]:
    if started is not None and held is not None and started != held:
        yield f"cluster.gpus_per_node: {started}: processes per node, of {held} GPUs that are reserved"


def _gpus(given: Given, flag: str) -> int | None:
    words = given.words(flag)
    match = _GRES.fullmatch(words[0]) if words else None
    if words and match is None and "gpu" in words[0] and any(one.isdigit() for one in words[0]):
        raise given.error(flag, f'expected a number of GPUs such as gpu:8, found "{words[0][:40]}"')
    return int(match[1]) or None if match else None
