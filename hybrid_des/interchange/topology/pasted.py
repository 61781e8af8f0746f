"""Dumps as people paste them: below a prompt, in a code fence, behind a launcher's tags, with colours.

    $ mpirun --tag-output … nvidia-smi topo -m
    [1,0]<stdout>:        GPU0  GPU1  CPU Affinity
    [1,0]<stdout>:GPU0     X    NV12  0-15
    [1,1]<stdout>:        GPU0  GPU1  CPU Affinity

The tag of the line on which a dump begins is cut from all lines that have it; lines with other tags are left out.
"""

import re
from collections.abc import Sequence

MOST_NAMED = 5  # other dumps whose lines are named
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def plain(text: str) -> str:
    """The text without colours, its lines ended by newlines."""
    return _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def from_here(text: str, start: int) -> str:
    """The dump that begins at a place of the text, and what follows it, without tags.

    Args:
        text: as `plain` returns it.
        start: where the dump begins; what stands before it on its line is a tag if it begins other lines too.
    """
    line = text.rfind("\n", 0, start) + 1
    tag = text[line:start].rstrip()
    lines = text[line:].split("\n")
    if not tag or sum(one.startswith(tag) for one in lines) < 2:
        return text[start:]
    return "\n".join(one[len(tag) :] for one in lines if one.startswith(tag))


def note_others(notes: list[str], text: str, starts: Sequence[int], chosen: int = 0) -> None:
    """Note that there are other dumps in the text, of which none is read."""
    lines = [text.count("\n", 0, start) + 1 for start in starts]
    if others := [line for place, line in enumerate(lines) if place != chosen]:
        many = f"{len(others)} other dumps" if len(others) > 1 else "another dump"
        where = ", ".join(map(str, others[:MOST_NAMED])) + (", …" if len(others) > MOST_NAMED else "")
        notes.append(f"of line {lines[chosen]}; the file has {many}, not read: line {where}")
