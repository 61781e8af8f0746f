"""Which of the programs that a script would have started is read, and what is said of the others."""

from collections.abc import Collection, Iterator, Sequence

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.frameworks.launch_line import Read, count_known, read_words
from hybrid_des.interchange.launched.copying import Changes
from hybrid_des.interchange.launched.starts import Outcome, Start

_MOST_LISTED = 6


def launch_of(outcome: Outcome, known: Collection[str], nth: int | None = None) -> Read:
    """The launch that is read: the last of those with the most flags that are known, or the one that is asked for.

    Args:
        outcome: what came of running the script.
        known: flags of the framework.
        nth: counts what was started from 1.

    Raises:
        UsageError: nothing was started, nothing with such flags, or not so many.
    """
    starts = outcome.starts
    ended = _end(outcome)
    if not starts:
        raise UsageError(
            f"{outcome.command}: {ended}, and started no trainer; --from-megatron reads the text of a script that "
            "cannot run here"
        )
    if nth is not None and nth > len(starts):
        raise UsageError(f"--nth {nth}: {outcome.command} started {len(starts)}: {_listed(starts)}")
    counts = [count_known(start.words, known) for start in starts]
    candidates = [at for at, count in enumerate(counts) if count and 2 * count >= max(counts)]
    at = nth - 1 if nth is not None else candidates[-1] if candidates else len(starts) - 1
    if not counts[at]:
        raise UsageError(
            f"{outcome.command}: no flag of Megatron-LM's pretrain_gpt.py, such as --num-layers, in {_listed(starts)}"
            + (f"; {ended}" if outcome.status else "")
        )
    start = starts[at]
    read = read_words((*start.around, *start.words), tuple(said_of(outcome, at)), start.environment)
    return read._replace(documents=start.documents)


def said_of(outcome: Outcome, at: int) -> Iterator[str]:
    """What a reader must know of how the launch was found, of which `at` counts from 0."""
    starts = outcome.starts
    if len(starts) > 1:
        yield f"{len(starts)} programs would start: {_listed(starts)}: {at + 1} is read; --nth chooses another"
    if outcome.status != 0:
        yield f"the script {_end(outcome)}; what it had started by then is read"
    if outcome.answered is not None:
        yield f"the script was told of {outcome.answered} GPUs per node; state others with --set cluster.gpus_per_node"


def remarks(outcome: Outcome) -> Iterator[str]:
    """What the script did beside starting programs; it changes no value."""
    if outcome.absent:
        yield f"not on this machine, and passed over: {_few(outcome.absent)}"
    if outcome.left_out:
        yield f"left out, as if done: {_few(outcome.left_out)}"
    if did := _changed(outcome.changes):
        yield f"the script {did} in the copy of its folder, which is gone; your files are as they were"


def _end(outcome: Outcome) -> str:
    if outcome.status is None:
        return f"was ended after {outcome.limit_s:g} s (--limit)"
    is_told = outcome.said and (outcome.status or not outcome.starts)
    last = f" ({one_line(outcome.said, 3 * LONGEST_SHOWN)})" if is_told else ""
    return f"ended with {outcome.status}{last}"


def _listed(starts: Sequence[Start]) -> str:
    shown = [f"{number} {start.shown}" for number, start in enumerate(starts, 1)]
    if len(shown) > _MOST_LISTED:
        half = _MOST_LISTED // 2
        shown = [*shown[:half], "…", *shown[-half:]]
    return "; ".join(shown)


def _few(names: Sequence[str]) -> str:
    shown = [one_line(name, LONGEST_SHOWN) for name in names[:_MOST_LISTED]]
    return ", ".join(shown) + (f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else "")


def _changed(changes: Changes) -> str:
    done = (("wrote", changes.written), ("deleted", changes.deleted))
    return " and ".join(
        f"{verb} {len(paths)} {'file' if len(paths) == 1 else 'files'} ({one_line(paths[0], LONGEST_SHOWN)}"
        f"{', …' if len(paths) > 1 else ''})"
        for verb, paths in done
        if paths
    )
