"""A job of a program other than Megatron-LM among those that a script would have started."""

import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.launch_line import flags_of
from hybrid_des.interchange.frameworks.scenario_file import Imported
from hybrid_des.interchange.jobs import read_job
from hybrid_des.interchange.jobs.mappings import flat_mapping, flattened, mapping_of_words
from hybrid_des.interchange.jobs.tools import recognised
from hybrid_des.interchange.launched.choice import said_of
from hybrid_des.interchange.launched.starts import Outcome, Start
from hybrid_des.interchange.recipes import Unfounded, built_by

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
        None if there is no such launch, or one of Megatron-LM.

    Raises:
        UsageError: as `read_job`.
    """
    asked = range(len(outcome.starts)) if nth is None else [nth - 1] if nth <= len(outcome.starts) else []
    if tool is None and any(not _OF_MEGATRON.isdisjoint(flags_of(outcome.starts[at].words)) for at in asked):
        return None
    for at in reversed(asked):
        start = outcome.starts[at]
        with _as_files(start, tool) as files:
            if not files:
                continue
            try:
                job = read_job(files, tool, fixed, model, [Path(start.directory)])
            except UsageError as error:
                raise UsageError(str(error).replace(f"{files[-1].parent}/", f"{outcome.command}: ")) from None
            return job._replace(unread=(*said_of(outcome, at), *job.unread))
    return None


@contextmanager
def _as_files(start: Start, tool: str | None) -> Iterator[list[Path]]:
    """The configurations that a launch names, as files for a time, and the rest of it below; none if none is known."""
    known = {path: text for path, text in start.documents.items() if _is_recognised(text, path)}
    if tool is None and not known and not any(recognised(mapping_of_words(start.words))):
        yield _recipe(start)
        return
    with TemporaryDirectory() as folder:
        files = [Path(folder) / str(number) / Path(path).name for number, path in enumerate(known)]
        files.append(Path(folder) / "launch.sh")
        words = _without(known, (*start.around, *start.words))
        for file, text in zip(files, (*known.values(), shlex.join(words)), strict=True):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        yield files


def _recipe(start: Start) -> list[Path]:
    """The Python file that a launch starts, if it builds the configuration of a job itself; else none."""
    files = (Path(start.directory, word) for word in start.words if word.endswith(".py"))
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return []
    try:
        built_by(file, "", lambda values: any(recognised(flattened(values, str(file)))))
    except Unfounded:
        raise
    except UsageError:
        return []
    return [file]


def _without(paths: Container[str], words: Sequence[str]) -> Iterator[str]:
    """Words but those that name one of some files, with the flag in front of each."""
    for at, word in enumerate(words):
        follows = words[at + 1] if at + 1 < len(words) and word.startswith("-") else ""
        if word.rpartition("=")[2] not in paths and follows not in paths:
            yield word


def _is_recognised(text: str, path: str) -> bool:
    try:
        return any(recognised(flat_mapping(text, path)))
    except UsageError:  # no mapping
        return False
