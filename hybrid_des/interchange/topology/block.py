"""A `cluster:` block with a comment beside each value, and the values that are unknown."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.scenario.composition import nested

UNKNOWN = "UNKNOWN"
LONGEST = 96  # columns of a value and its comment


@dataclass
class Block:
    """Values of a cluster by path below it, such as "nvlink.bandwidth".

    Attributes:
        source: what was read.
        values: in the order of the file; `UNKNOWN` where the dump does not say it.
        comments: by path, where each comes from.
        notes: lines above the block.
        asked: by path of unknown values, what to state.
    """

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, value: Any, comment: str = "") -> None:
        """Add a value with its comment."""
        self.values[path] = value
        if comment:
            self.comments[path] = comment

    def ask(self, path: str, question: str) -> None:
        """Add a value that is unknown, with what to state."""
        self.add(path, UNKNOWN, question)
        self.asked[path] = question

    def gpu(self, name: str | None, comment: str) -> None:
        """Add the kind of GPU by its name in the catalogue, or ask for it."""
        if name in catalogue.names():
            self.add("gpu", name, comment)
        else:
            said = f"{comment}; " if comment else ""
            self.ask("gpu", f"{said}a name of hybrid-des's catalogue, or {{memory, peak, bandwidth, multiprocessors}}")

    def ask_adapters(self, question: str) -> None:
        """Ask for the bandwidth of each adapter, and for their number."""
        self.ask("infiniband.bandwidth", question)
        self.ask("infiniband.nics_per_node", "their number")

    def ask_nodes(self) -> None:
        """Ask for what a network does not show of its nodes."""
        self.gpu(None, "")
        self.ask("gpus_per_node", "the network does not show them")

    @property
    def mapping(self) -> dict[str, Any]:
        """The values as a scenario file has them."""
        return nested(self.values)

    @property
    def text(self) -> str:
        """The block as YAML, with comments."""
        lines = [f"# {line}" for line in (self.source, *self.notes)]
        lines.append("cluster:")
        section = ""
        for path, value in self.values.items():
            above, _, key = path.rpartition(".")
            if above and above != section:
                lines.append(f"  {above}:")
            section = above
            indent = "    " if above else "  "
            lines += self._lines(indent, key, value, self.comments.get(path, ""))
        return "\n".join(lines)

    def _lines(self, indent: str, key: str, value: Any, comment: str) -> list[str]:
        beside = f"# {comment}" if comment else ""
        if isinstance(value, list):
            head = f"{indent}{key}:  {beside}".rstrip()
            return [head, *(f"{indent}  - {_flow(item)}" for item in value)]
        line = f"{indent}{key}: {_flow(value)}"
        if len(line) + len(beside) > LONGEST:
            return [f"{indent}{beside}", line]
        return [f"{line:<36}  {beside}".rstrip() if beside else line]


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
