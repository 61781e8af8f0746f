"""Sections that select a plug-in, whose options share the section with its own keys.

    cluster: {topology: leaf-spine, leaf_size: 2}        # an option of leaf-spine, held as cluster.options.leaf_size

The plug-ins registered when a scenario is read determine the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, TypeVar

from pydantic import ModelWrapValidatorHandler, PrivateAttr, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from hybrid_des.errors import UsageError
from hybrid_des.options import Elsewhere, Options, Section, SharedOptions, mark_of, of_ranks, required_keys
from hybrid_des.registry import Entry
from hybrid_des.scenario.problem import Problem, Problems, misfit, paths_of, problems_in, unknown_key

AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class Plugins:
    """The plug-ins that a section selects from.

    Attributes:
        key: the key that names one.
        names, find: access to the registry.
        default: the name if none is given.
        besides: values of the key that are not registered, or not fit for messages: a name for these, and the options.
    """

    key: str
    names: Callable[[], list[str]]
    find: Callable[[str], Entry[object]]
    default: str | None = None
    besides: Mapping[str | None, Entry[object]] = field(default_factory=dict)

    def readers(self) -> dict[str, dict[str, FieldInfo]]:
        """For each option, the plug-ins that read it, by name, with their fields."""
        readers: dict[str, dict[str, FieldInfo]] = {}
        for entry in map(self.find, self.names()):
            for key in entry.keys:
                readers.setdefault(key, {})[entry.name] = entry.options.model_fields[key]  # type: ignore[union-attr]
        return readers

    def chosen(self, values: Mapping[str, object]) -> Entry[object] | None:
        """The plug-in that plain values select; None if the name is unknown."""
        name = values.get(self.key, self.default)
        if name is not None and not isinstance(name, str):
            return None
        if name in self.besides:
            return self.besides[name]
        return self.find(name) if name is not None and name in self.names() else None

    def requiring(self, values: Mapping[str, object]) -> list[str]:
        """The plug-ins with required options whose required options are all given."""
        given = {key for key, value in values.items() if value is not None}
        needs = {name: set(required_keys(self.find(name).options)) for name in self.names()}
        return [name for name, keys in needs.items() if keys and keys <= given]


class PluginSection(Section):
    """A section with its own keys and those of the plug-in it selects."""

    plugins: ClassVar[Plugins]
    options: Options | None = None
    """Options of the plug-in."""
    _unread: dict[str, object] = PrivateAttr(default_factory=dict)
    _lacking: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    @cache
    def own_keys(cls) -> Mapping[str, FieldInfo]:
        """The section's own keys."""
        return {name: one for name, one in cls.model_fields.items() if name != "options"}

    @classmethod
    def known_keys(cls) -> dict[str, list[FieldInfo]]:
        """The section's own keys and the options of all plug-ins."""
        own = {name: [one] for name, one in cls.own_keys().items()}
        return own | {key: list(readers.values()) for key, readers in cls.plugins.readers().items()}

    @classmethod
    def keys_given(cls, values: Mapping[str, object]) -> dict[str, FieldInfo]:
        """Every key read by the section or its plug-in, and given keys that only other plug-ins read.

        Raises:
            UsageError: an option of the plug-in has the name of one of the section's own keys.
        """
        own, chosen = cls.own_keys(), cls.plugins.chosen(values)
        known = dict(own)
        if chosen is not None and chosen.options is not None:
            options = chosen.options.model_fields
            for key in own.keys() & options.keys():
                raise UsageError(f'{chosen.name}: an option cannot be called "{key}": the section has that key')
            known |= options
        if values.keys() - known.keys():
            readers = cls.plugins.readers()
            known |= {key: next(iter(readers[key].values())) for key in values if key in readers and key not in known}
        return known

    @property
    def arguments(self) -> tuple[Options, ...]:
        """The last arguments of the plug-in: its options, or none for a plug-in without options."""
        return () if self.options is None else (self.options,)

    @property
    def unread(self) -> Mapping[str, object]:
        """Options that were given but that the plug-in does not read."""
        return self._unread

    def misfits_of_options(self, path: str, ranks: int) -> Iterator[Problem]:
        """Required options that are not given, and options without effect unless they state the implied value.

        Args:
            path: that of the section.
            ranks: the pipeline size, of which values such as 2p are multiples.
        """
        chosen = self.plugins.chosen(dict(self))
        what, names = chosen.name if chosen else "", f"{path}.{self.plugins.key}"
        for key in self.lacking:
            yield misfit(f"is required by {what}", f"{path}.{key}", names)
        for key, value in self.unread.items():
            readers = self.plugins.readers()[key]
            mark = mark_of(next(iter(readers.values())), Elsewhere)
            if mark is None or value != of_ranks(mark.value, ranks):
                yield misfit(f"is not read by {what}; read by {', '.join(readers)}", f"{path}.{key}", names)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Required options of the plug-in that were not given."""
        return self._lacking

    @model_validator(mode="wrap")
    @classmethod
    def _with_options(cls, values: object, handler: ModelWrapValidatorHandler[PluginSection]) -> PluginSection:
        if not isinstance(values, Mapping):
            return handler(values)
        known, chosen = cls.keys_given(values), cls.plugins.chosen(values)
        own = {key: value for key, value in values.items() if key in cls.own_keys()}
        rest = {key: value for key, value in values.items() if key not in own}
        problems = [
            Problem((key,), unknown_key(str(key), cls.known_keys(), paths_of(str(key), cls)))
            for key in rest
            if key not in known
        ]
        given = {key: value for key, value in rest.items() if key in known and value is not None}
        kind = chosen.options if chosen else None
        wrong: list[Problem] = []
        options, unread = _options_of(kind, given, known, wrong)
        section = None
        try:
            section = handler({**own, "options": options})
        except ValidationError as error:
            problems += problems_in(error, cls)
        if section is None or problems or wrong:
            raise Problems([*problems, *wrong])
        section._unread = unread if chosen else {}  # without a plug-in, their reader is unknown
        section._lacking = tuple(key for key in required_keys(kind) if key not in given)
        return section


def _options_of(
    kind: type[Options] | None, given: Mapping[str, object], known: Mapping[str, FieldInfo], problems: list[Problem]
) -> tuple[Options | None, dict[str, object]]:
    """The options that a plug-in reads, and the values of those that only others read."""
    read = {key: value for key, value in given.items() if kind and key in kind.model_fields}
    others = {key: value for key, value in given.items() if key not in read}
    unread = _alone(others, known, problems) if others else {}
    if kind is SharedOptions:
        return SharedOptions(**unread), {}
    return None if kind is None else _validated(kind, read, problems), unread


def _alone(given: Mapping[str, object], known: Mapping[str, FieldInfo], problems: list[Problem]) -> dict[str, object]:
    """The values of options that the plug-in does not read, each by the field of the first plug-in that has it."""
    fields: dict[str, object] = {key: (known[key].annotation, known[key]) for key in given}
    kind: type[Section] = create_model("Alone", __base__=Section, **fields)  # type: ignore[call-overload]
    alone = _validated(kind, given, problems)
    return {} if alone is None else dict(alone)


def _validated(kind: type[AnySection], values: Mapping[str, object], problems: list[Problem]) -> AnySection | None:
    """The validated values; None after adding the problems, except for missing keys, which `lacking` lists."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        missing = {(key,) for key in kind.model_fields.keys() - values.keys()}
        problems += [one for one in problems_in(error, kind) if one.path not in missing]
    return None
