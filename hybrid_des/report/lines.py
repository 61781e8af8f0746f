"""Lines of text that fit a terminal: wrapped, or with as many parts as there is room for."""

import re
import textwrap
from collections.abc import Sequence

NO_BREAK = "\N{NO-BREAK SPACE}"


def folded(text: str, room: int) -> list[str]:
    """Wrap a text into lines of at most `room` characters; numbers stay with their units."""
    if len(text) <= room:
        return [text]
    kept = re.sub(r"(?<=[\d)]) (?=%|[µmn]?s\b)", NO_BREAK, text)
    lines = textwrap.wrap(kept, room, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def fitting(head: str, parts: Sequence[str], room: int, between: str = ", ") -> str:
    """As many parts as a line has room for, at least one, and the number of parts left out."""
    for shown in range(len(parts), 0, -1):
        more = [f"{len(parts) - shown} more"] if shown < len(parts) else []
        text = head + between.join([*parts[:shown], *more])
        if len(text) <= room or shown == 1:
            return text
    return head.rstrip()
