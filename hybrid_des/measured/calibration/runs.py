"""The benchmarks in a file: runs of nccl-tests or rccl-tests below each other, or a log of NCCL Inspector."""

from collections.abc import Sequence
from pathlib import Path

from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.measured.calibration.nccl_inspector import read_inspector
from hybrid_des.measured.calibration.nccl_json import read_json
from hybrid_des.measured.calibration.nccl_log import read_logs
from hybrid_des.measured.calibration.nccl_tests import NcclTests, tests_of

MOST_NAMED = 6  # runs that a message lists


def read_runs(path: str | Path, collective: str | None = None) -> list[NcclTests]:
    """Read a file, or a folder of files of NCCL Inspector's, one per process; see `parse_runs`."""
    if not Path(path).is_dir():
        return parse_runs(read_text(path), str(path), collective)
    texts = [read_text(file) for file in sorted(Path(path).iterdir()) if file.is_file()]
    if runs := _of(read_inspector("\n".join(texts), str(path)), collective):
        return runs
    raise UsageError(f"{path}: no log of NCCL Inspector in this folder; expected JSON lines with coll_perf")


def parse_runs(text: str, name: str, collective: str | None = None) -> list[NcclTests]:
    """Read the runs of a text, in their order; of a log of NCCL Inspector, one per collective and shape of group.

    Args:
        text: what was pasted or logged.
        name: of the file, for messages.
        collective: only runs of this one; a single run that does not name its collective is taken for one.

    Raises:
        UsageError: there is none, or one is damaged or contradicts itself.
    """
    if runs := _of(read_inspector(text, name), collective):
        return runs
    log = read_json(text, name)
    logs = [log] if log is not None else read_logs(text, name)
    if len(logs) == 1:
        return [tests_of(logs[0], collective)]
    if collective and (named := [log for log in logs if collective in log.tests]):
        logs = named
    return [tests_of(log, collective) for log in logs]


def _of(runs: Sequence[NcclTests], collective: str | None) -> list[NcclTests]:
    return [run for run in runs if collective in (None, run.test)]


def on_ranks(run: NcclTests, ranks: int) -> NcclTests:
    """The run with its number of ranks, which the log does not say.

    Raises:
        UsageError: the log says another one.
    """
    if run.ranks not in (None, ranks):
        raise UsageError(f"{run.source}: {run.ranks} ranks ran, not {ranks} (--ranks)")
    return run._replace(ranks=ranks)


def one_of(runs: Sequence[NcclTests], number: int | None) -> NcclTests:
    """The run of a number, counted from 1, or the only one.

    Raises:
        UsageError: there is no such run, or several and no number.
    """
    if number is None and len(runs) == 1:
        return runs[0]
    if number is not None and 1 <= number <= len(runs):
        return runs[number - 1]
    listed = [f"{at} {run.test} on {run.where.rstrip('; ') or 'unknown ranks'}" for at, run in enumerate(runs, 1)]
    more = ", …" if len(listed) > MOST_NAMED else ""
    file = runs[0].source.rpartition(":")[0] or runs[0].source
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    raise UsageError(
        f"{file}: {count}: {', '.join(listed[:MOST_NAMED])}{more}; say which: --run N or --collective NAME"
    )
