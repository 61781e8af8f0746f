"""A job of a program other than Megatron-LM among those that a script would have started."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.launch_line import flags_of
from hybrid_des.interchange.frameworks.scenario_file import Imported
from hybrid_des.interchange.jobs import read_job
from hybrid_des.interchange.jobs.mappings import flat_mapping, mapping_of_words
from hybrid_des.interchange.jobs.tools import recognised
from hybrid_des.interchange.launched.starts import Outcome, Start

LINE = "launch.sh"
_OF_MEGATRON = {
    "--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--micro-batch-size", "--global-batch-size",
    "--seq-length",
}  # fmt: skip


def job_of(
    outcome: Outcome, nth: int | None, tool: str | None, fixed: Mapping[str, Any], model: Imported | None
) -> Imported | None:
    """The values of the last launch of a program whose keys its words, or the files that these name, have.

    Args:
        outcome: what came of running the script.
        nth: the only launch that is asked, counted from 1; None: all without sizes of Megatron-LM.
        tool: as in `read_job`, for launches whose keys do not say it.
        fixed: as in `read_job`.
        model: as in `read_job`.

    Returns:
        None if there is no such launch.

    Raises:
        UsageError: as `read_job`.
    """
    starts = outcome.starts if nth is None else outcome.starts[nth - 1 : nth]
    for start in reversed(starts):
        with _as_files(start) as files:
            others = _OF_MEGATRON.isdisjoint(flags_of(start.words)) and any(_is_recognised(one, start) for one in files)
            if tool is None and not others:
                continue
            try:
                return read_job(files, tool, fixed, model)
            except UsageError as error:
                raise UsageError(str(error).replace(f"{files[-1].parent}/", f"{outcome.command}: ")) from None
    return None


@contextmanager
def _as_files(start: Start) -> Iterator[list[Path]]:
    """The configurations that a launch names, as files for a time, and the launch itself below them."""
    with TemporaryDirectory() as folder:
        files = []
        for number, (path, text) in enumerate(start.documents.items()):
            files.append(Path(folder) / str(number) / Path(path).name)
            files[-1].parent.mkdir()
            files[-1].write_text(text, encoding="utf-8")
        line = Path(folder) / LINE
        line.write_text(shlex.join((*start.around, *start.words)), encoding="utf-8")
        yield [*(file for file in files if _is_recognised(file, start)), line]


def _is_recognised(file: Path, start: Start) -> bool:
    if file.name == LINE:
        return any(recognised(mapping_of_words(start.words)))
    try:
        return any(recognised(flat_mapping(file.read_text(encoding="utf-8"), file.name, is_file=True)))
    except UsageError:  # no mapping
        return False
