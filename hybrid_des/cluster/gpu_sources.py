"""What each figure of the catalogue rests on: the comments of `gpus.yaml`, which stand beside the figures.

    figures("h100")      [Figure("memory", "80 GB", "NVIDIA H100 SXM datasheet"), …]

A comment that begins with "the same" names what the one before it did; a figure of a link that has no comment rests on
the source of the link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ENTRY = re.compile(r"^  ([\w-]+):$")
FIGURE = re.compile(r"^    (\w+): *([^#]*?) *(?:# (.*))?$")
SHARES = re.compile(r"^      (\w+): \{(.*)\} *(?:# (.*))?$")
SAME = re.compile(r"^the same(?: page)?(?P<more>[:;,].*)?$")
ABOVE = "see the head of hybrid_des/cluster/gpus.yaml"
LINKS = {"nvlink": "bandwidth", "infiniband": "bandwidth", "pcie": "bandwidth", "host": "bandwidth"}


class Figure(NamedTuple):
    """A figure of a GPU as it is written, and what it rests on."""

    name: str
    value: str
    source: str


@cache
def _entries() -> Mapping[str, tuple[Figure, ...]]:
    """The figures of all links and GPUs, by name."""
    entries: dict[str, list[Figure]] = {}
    name = before = ""
    for line in Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8").splitlines():
        if entry := ENTRY.match(line):
            name, before = entry[1], ""
            entries[name] = []
        elif name and (figure := FIGURE.match(line)):
            source = figure[3] or ""
            if same := SAME.match(source):
                source = before + (same["more"] or "")
            elif source and not source.startswith("as "):
                before = re.split("[:;]", source)[0]
            entries[name].append(Figure(figure[1], figure[2], source))
        elif name and (shares := SHARES.match(line)):
            source = shares[3] or next(one.source for one in reversed(entries[name]) if one.name == "efficiency")
            entries[name].append(Figure(f"efficiency.{shares[1]}", shares[2], source))
    return {name: tuple(figures) for name, figures in entries.items()}


def figures(gpu: str) -> list[Figure]:
    """The figures of a GPU and of its links, in the order of the catalogue."""
    known = _entries()
    listed = []
    for figure in known[gpu]:
        if figure.name == "efficiency":
            continue  # its precisions follow
        if "see above" in figure.source:
            figure = figure._replace(source=figure.source.replace("see above", ABOVE))
        if figure.name in LINKS:
            width = next(one for one in known[figure.value] if one.name == LINKS[figure.name])
            source = "; ".join(filter(None, (figure.source, width.source)))
            figure = Figure(figure.name, f"{figure.value}, {width.value}", source)
        listed.append(figure)
    return listed
