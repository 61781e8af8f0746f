"""Import a profile: its format decides how its files are read, and what the scenario is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hybrid_des.interchange.profiles.imported import Imported
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks
from hybrid_des.interchange.profiles.own import own_kineto, own_timeline
from hybrid_des.interchange.profiles.pipelined import PipelineProfile
from hybrid_des.interchange.profiles.recognition import CHAKRA, DUMP, TABLE, recognized
from hybrid_des.interchange.profiles.traced import chakra_profile, kineto_profile
from hybrid_des.scenario import Scenario

Progress = Callable[[int, int], None]  # (bytes read, of so many)


def import_profile(
    target: str | Path | Sequence[str | Path], progress: Progress | None = None, machine: Scenario | None = None
) -> Imported:
    """Read a profile, make a scenario of it, and simulate it.

    Args:
        target: a file, a folder, an archive or a pattern of files, or several of them.
        progress: called while large files are read.
        machine: a scenario whose cluster carries the messages of traces without a pipeline; default: the recorded
            times.

    Returns:
        Its figures, its report as text, the scenario as values; `write` puts all of it into a folder.

    Raises:
        UsageError: there is no profile, or it is broken; the message names the file and what is wrong with it.

    Example:
        >>> found = import_profile("scenarios/durations/a100_8x_slow_gpu.csv")
        >>> found.figures["schedule"], round(found.figures["worst_error_percent"], 1)
        ('1f1b', 0.1)
    """
    profile = recognized(target)
    if profile.format == DUMP:
        return PipelineProfile.of(profile).imported()
    if profile.format == TABLE:
        return (own_timeline(profile) or PipelineProfile.of(profile)).imported()
    if profile.format == CHAKRA:
        return chakra_profile(profile, machine).imported()
    job = KinetoRanks.read(profile.files, progress)
    return (own_kineto(profile, job) or kineto_profile(profile, job, machine)).imported()
