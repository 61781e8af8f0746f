"""How many GPUs a launch line of Megatron-LM takes: nodes, GPUs per node, replicas.

torchrun starts `--nproc-per-node` processes, one per GPU (docs.pytorch.org/docs/stable/elastic/run.html); `gpu` and
`auto` are all that the node has. `--gres=gpu:8`, `--gpus-per-node=h100:8`, `--gpus=64` and `--gpus-per-task` say what
a node has, `--ntasks-per-node` and `--ntasks` how many processes SLURM starts (slurm.schedmd.com/sbatch.html): one per
node, where that starts the others. mpirun's `-np` and `--world-size` are all processes, one per GPU. Numbers that do
not agree are named, with the one that counts.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hybrid_des.interchange.frameworks.batch_job import gpus_in
from hybrid_des.interchange.frameworks.launch_line import Given

_NODES = ("--nnodes", "--nodes", "--num-nodes", "--num-machines", "--actor-num-nodes", "--replicas")
_STARTED = ("--nproc-per-node", "--num-gpus", "--npernode", "--actor-num-gpus-per-node", "--nproc-per-pod")
_HELD = ("--gres", "--gpus-per-node", "--gpus-per-pod")
_ALL = ("gpu", "auto", "cuda")
_RANKS = {"--ntasks": "--ntasks, -np", "--world-size": "--world-size"}  # processes of all nodes, as they are written
_PER_NODE = 8  # of nodes of which nothing else is said


class Machine(NamedTuple):
    """Nodes and GPUs per node; None where the line does not say. `said`: numbers that do not agree."""

    nodes: int | None
    per_node: int | None
    said: tuple[str, ...] = ()


def set_aside_if_no_multiple(given: Given, gpus: Machine, axes: Mapping[str, int | None]) -> Machine:
    """The GPUs without a number of nodes that the ranks of a replica do not divide, whose flag is set aside."""
    ranks = math.prod(size or 1 for size in axes.values())
    if gpus.nodes is None or gpus.per_node is None or gpus.nodes * gpus.per_node % ranks == 0:
        return gpus
    shape = " × ".join(f"{axis} {size or 1}" for axis, size in axes.items())
    message = f"{gpus.nodes} × {gpus.per_node} GPUs are no multiple of {shape}"
    for flag in _NODES:
        if flag in given.flags or flag == _NODES[0]:
            given.aside.setdefault(flag, message)
    return gpus._replace(nodes=None)


class _Slurm(NamedTuple):
    """Per node: GPUs that are reserved, by the option that says so, and processes that SLURM starts."""

    held: dict[str, int]
    tasks: int | None
    said: tuple[str, ...]


def machine(given: Given) -> Machine:
    """The GPUs that a line takes.

    Raises:
        Unreadable: a number is none.
    """
    nodes, ranks = _nodes(given), _number(given, "--ntasks")
    per_node = _started(given)
    if nodes is None and ranks is not None and per_node is not None:  # mpirun -np 64 --npernode 8
        nodes = -(-ranks // per_node)
    said = []
    if nodes is None and "--nproc-per-node" in given and not any(flag in given.flags for flag in _NODES):
        nodes = 1
        said.append("cluster.nodes: 1: as torchrun starts without --nnodes")
    slurm = _slurm(given, nodes)
    if per_node is None and any(flag in given.flags for flag in _STARTED):
        per_node = _all_of_a_node(given, slurm)
    elif per_node is None:
        sizes = [size for size in (slurm.tasks,) if size is not None and size > 1]
        per_node = next(iter((*sizes, *slurm.held.values())), slurm.tasks)
    if nodes is None and not any(flag in given.flags for flag in (*_NODES, *_STARTED)):
        nodes, per_node, counted = _of_ranks(given, per_node, slurm)
        said += counted
    stated = {flag: word for flag in _NODES if (word := next(iter(given.words(flag)), ""))}
    said += [*slurm.said, *_processes(given, per_node, slurm)]
    if len({*stated.values()}) > 1:
        said.append(f"cluster.nodes: {nodes}: of {', '.join(' '.join(pair) for pair in stated.items())}")
    return Machine(nodes, per_node, tuple(said))


def _of_ranks(given: Given, per_node: int | None, slurm: _Slurm) -> tuple[int | None, int | None, list[str]]:
    """Nodes and GPUs per node of so many processes, where nothing says how many a node has; and what is said of it."""
    flag = next((flag for flag in _RANKS if _number(given, flag) is not None), "")
    ranks = _number(given, flag)
    if ranks is None:
        return None, per_node, []
    each = per_node or min(_PER_NODE, ranks)
    nodes = -(-ranks // (slurm.tasks or each))
    return nodes, each, [f"cluster.nodes: {nodes}: nodes of {each} GPUs for {ranks} processes ({_RANKS[flag]})"]


def _nodes(given: Given) -> int | None:
    readable = [flag for flag in _NODES if re.fullmatch(r"[1-9]\d{0,5}", next(iter(given.words(flag)), ""))]
    for flag in _NODES:
        word = next(iter(given.words(flag)), "")
        if match := re.fullmatch(r"(\d{1,6})[-:]\1", word):  # torchrun's and SLURM's least and most
            return int(match[1])
        if re.fullmatch(r"\d{1,6}[-:]\d{1,6}", word) and not readable:
            raise given.error(flag, f"{word}: as many nodes as there are within this range")
    return given.number(*readable) if readable else given.number(*_NODES)


def _number(given: Given, *flags: str) -> int | None:
    """The first number after these flags, if one has a number."""
    words = (next(iter(given.words(flag)), "") for flag in flags)
    return next((int(word) for word in words if re.fullmatch(r"[1-9]\d{0,5}", word)), None)


def _started(given: Given) -> int | None:
    """Processes per node of the line's own launcher; None without, or if they are as many as GPUs."""
    counted = [flag for flag in _STARTED if next(iter(given.words(flag)), "") not in _ALL]
    return given.number(*counted)


def _all_of_a_node(given: Given, slurm: _Slurm) -> int | None:
    if slurm.held:
        return next(iter(slurm.held.values()))
    flag = next(flag for flag in _STARTED if flag in given.flags)
    if flag in given.aside:
        return None
    raise given.error(flag, "all GPUs of a node; expected their number, here or in --gres=gpu:8")


def _slurm(given: Given, nodes: int | None) -> _Slurm:
    """What SLURM or Kubernetes gives each node."""
    ranks, tasks = _number(given, "--ntasks"), _number(given, "--ntasks-per-node", "--tasks-per-node")
    said = []
    if ranks is not None and nodes is not None and tasks is None and not any(flag in given.flags for flag in _STARTED):
        tasks = -(-ranks // nodes)
    elif None not in (ranks, nodes, tasks) and ranks != (nodes or 1) * (tasks or 1):
        said.append(f"cluster.gpus_per_node: --ntasks {ranks} are not {nodes} nodes of --ntasks-per-node {tasks}")
    held = {flag: size for flag in _HELD if (size := _gpus(given, flag)) is not None}
    if (size := _gpus(given, "--gpus-per-task")) is not None:
        held["--gpus-per-task"] = size * (tasks or 1)
    if (size := _gpus(given, "--gpus")) is not None and nodes is not None:
        held["--gpus"] = -(-size // nodes)
    if len({*held.values()}) > 1:
        listed = ", ".join(f"{size} by {flag}" for flag, size in held.items())
        said.append(f"cluster.gpus_per_node: {next(iter(held.values()))}: GPUs that are reserved per node: {listed}")
    return _Slurm(held, tasks, tuple(said))


def _processes(given: Given, per_node: int | None, slurm: _Slurm) -> Iterator[str]:
    """Where processes and GPUs of a node do not agree."""
    held = next(iter(slurm.held.values()), None)
    if per_node is not None and held is not None and per_node != held:
        few = "more than the" if per_node > held else "of"
        yield f"cluster.gpus_per_node: {per_node}: processes per node, {few} {held} GPUs that are reserved"
    own = next((flag for flag in _STARTED if flag in given.flags), None)
    if own is not None and per_node is not None and slurm.tasks is not None and slurm.tasks > 1 and own != "--npernode":
        counted = f"{own} {per_node} in each of {slurm.tasks} tasks per node"
        yield f"cluster.gpus_per_node: {per_node}: {counted} would be {per_node * slurm.tasks} processes"


def _gpus(given: Given, flag: str) -> int | None:
    word = next(iter(given.words(flag)), "")
    size = gpus_in(word, bare=flag != "--gres")
    if size is None and "gpu" in word and any(one.isdigit() for one in word):
        raise given.error(flag, f'expected a number of GPUs such as gpu:8, found "{word[:40]}"')
    return size
