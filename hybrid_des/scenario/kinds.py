"""A change of the plug-in that a section selects drops the options that only the old one reads.

    --set schedule.kind=1f1b        on {kind: interleaved-1f1b, chunks: 2}: without chunks, of which 1f1b has one

Keys that the same change gives, or an earlier `--set`, stay, and are refused where they do not apply.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from hybrid_des.registry import Entry
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.problem import sections_at
from hybrid_des.scenario.sections.plugins import PluginSection
from hybrid_des.scenario.sections.training import Schedule
from hybrid_des.scenario.strict_yaml import KeyPath, dotted

INSTEAD = "file"  # of a schedule: it has the order that a kind would have
CHUNKS = "chunks"


def section_of(path: KeyPath) -> type[PluginSection] | None:
    """The section whose plug-in the key at a path selects; None for other keys."""
    sections = sections_at(Scenario, path[:-1])
    return next((one for one in sections if issubclass(one, PluginSection) and one.plugins.key == path[-1]), None)


def drop_options(
    values: object, path: KeyPath, before: object, kept: Callable[[KeyPath], bool]
) -> Iterator[tuple[KeyPath, str]]:
    """Remove from plain values what a changed key at a path leaves without effect.

    Args:
        values: the scenario, with the change.
        path: of the key.
        before: the section before the change.
        kept: whether a key stays in any case.

    Yields:
        The path of each key that is gone, and a sentence that says so.
    """
    kind, section = section_of(path), values
    for key in path[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    if kind is None or not isinstance(section, dict):
        return
    old, new = kind.plugins.chosen(before if isinstance(before, Mapping) else {}), kind.plugins.chosen(section)
    if old is None or new is None or old.name == new.name:
        return
    for key in [*_unread(section, kind, old, new)]:
        at = (*path[:-1], key)
        if not kept(at):
            del section[key]
            yield at, f"{dotted(at)} of {old.name} is left out: {new.name} does not read it"


def _unread(
    section: Mapping[str, object], kind: type[PluginSection], old: Entry[object], new: Entry[object]
) -> Collection[str]:
    """Keys of a section that the old plug-in reads and the new one does not."""
    shared = new.options is not None and not new.keys  # reads the options of all
    unread = [key for key in section if key in old.keys and key not in new.keys and not shared]
    if kind is Schedule and new.facts:
        unread += [INSTEAD] if section.get(INSTEAD) is not None else []
        fixed = new.facts["chunks"] or (None if new.facts["many_chunks"] else 1)
        unread += [CHUNKS] if fixed is not None and section.get(CHUNKS, fixed) != fixed else []
    return unread
