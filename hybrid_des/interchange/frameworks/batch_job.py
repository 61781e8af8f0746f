"""What a batch system gives a job: the header of a script for SLURM's sbatch, or a manifest of Kubernetes.

Of a header, options and the variables that SLURM sets from them (slurm.schedmd.com/sbatch.html, output environment
variables). Manifests are read in `kubernetes`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "np": "ntasks"}  # options of sbatch, srun and mpirun
_DIRECTIVE = re.compile(r"(?m)^\s*#SBATCH[ \t]+(.*)$")
_OPTION = re.compile(r"(?:^|(?<=\s))-(?:([A-Za-z])|-([A-Za-z][\w-]*))(?:[=\s]*([^\s=-]\S*))?")
_SLURM = {  # option of sbatch → variables that have its value
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",), "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "gpus": ("SLURM_GPUS",), "gpus-per-task": ("SLURM_GPUS_PER_TASK",), "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "job-name": ("SLURM_JOB_NAME",),
}  # fmt: skip
_GPUS = re.compile(r"(?:gres[:/])?gpus?(?:[:=/]([A-Za-z][\w.-]*))?(?:[:=](\d{1,6}))?(?:\(.*\))?")


class BatchJob(NamedTuple):
    """What surrounds a script.

    Attributes:
        script: what is started.
        options: of sbatch, by their long names; `replicas` and `gpus-per-pod` of a manifest.
        variables: what is set before the script begins.
        notes: what was left out, one line each.
    """

    script: str
    options: Mapping[str, str]
    variables: Mapping[str, str]
    notes: tuple[str, ...] = ()


def sbatch_job(text: str) -> BatchJob:
    """A script with what the `#SBATCH` lines in it say; the last of equal options counts."""
    options: dict[str, str] = {}
    notes = []
    for option, value in _directives(text):
        if options.get(option, value) != value:
            notes.append(f"#SBATCH --{option} {options[option]} and {value}: the last counts")
        options[option] = value.strip("\"'")
    variables = {one: value for option, value in options.items() for one in _SLURM.get(option, ())}
    tasks, nodes = options.get("ntasks-per-node", ""), options.get("nodes", "")
    if "ntasks" not in options and tasks.isdecimal() and nodes.isdecimal():
        variables |= dict.fromkeys(_SLURM["ntasks"], str(int(tasks) * int(nodes)))
    for option in ("gres", "gpus-per-node"):
        if size := gpus_in(options.get(option, ""), bare=option != "gres"):
            variables["SLURM_GPUS_ON_NODE"] = str(size)
    return BatchJob(text, options, variables, tuple(notes))


def gpus_in(word: str, *, bare: bool) -> int | None:
    """The GPUs of a value such as gpu:8, gpu:h100:8(S:0-1), nvme:1,gpu:8 or gpu; None without any.

    Args:
        word: the value of an option.
        bare: whether a number alone, or after a type as in h100:8, counts.
    """
    for part in re.split(r",(?![^(]*\))", word):
        if match := _GPUS.fullmatch(part):
            return int(match[2] or 1) or None
        if bare and (match := re.fullmatch(r"(?:[A-Za-z][\w.-]*:)?(\d{1,6})", part)):
            return int(match[1]) or None
    return None


def _directives(text: str) -> Iterator[tuple[str, str]]:
    """Options of `#SBATCH` lines, with their long names where they have both."""
    for line in _DIRECTIVE.findall(text):
        for option, long, value in _OPTION.findall(re.split(r"\s#", line)[0]):
            if long or option in SHORT:
                yield long or SHORT[option], value
