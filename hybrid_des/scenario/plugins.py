"""Sections that choose a plug-in, whose own options stand beside the section's keys.

    cluster: {topology: leaf-spine, leaf_size: 2}        # an option of leaf-spine, held as cluster.options.leaf_size

Which keys those are follows from what is registered when a scenario is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from pydantic import ModelWrapValidatorHandler, PrivateAttr, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from hybrid_des.errors import UsageError
from hybrid_des.options import Options, Section, SharedOptions, required_keys
from hybrid_des.registry import Entry, unknown
from hybrid_des.scenario.problem import Problem, Problems, problems_in


@dataclass(frozen=True)
class Chosen:
    """What a section chose: what to call it, and the class of its options, if it has any."""

    name: str
    options: type[Options] | None


@dataclass(frozen=True)
class Plugins:
    """The plug-ins that a section chooses from.

    Attributes:
        key: the key that names one.
        names, find: what is registered now.
        default: the name where none is given.
        besides: what the key may say, or be, besides a name.
    """

    key: str
    names: Callable[[], list[str]]
    find: Callable[[str], Entry[Any]]
    default: str | None = None
    besides: Mapping[str | None, Chosen] = field(default_factory=dict)

    def readers(self) -> dict[str, dict[str, FieldInfo]]:
        """Option → the plug-ins that read it, by name, each with its field."""
        found: dict[str, dict[str, FieldInfo]] = {}
        for entry in map(self.find, self.names()):
            for key in entry.keys:
                found.setdefault(key, {})[entry.name] = entry.options.model_fields[key]  # type: ignore[union-attr]
        return found

    def chosen(self, values: Mapping[str, Any]) -> Chosen | None:
        """What plain values choose; None where the name is unknown."""
        name = values.get(self.key, self.default)
        if name is not None and not isinstance(name, str):
            return None
        if name in self.besides:
            return self.besides[name]
        return Chosen(name, self.find(name).options) if name is not None and name in self.names() else None

    def requiring(self, values: Mapping[str, Any]) -> list[str]:
        """The plug-ins that need an option, and have all that they need."""
        given = {key for key, value in values.items() if value is not None}
        needs = {name: set(required_keys(self.find(name).options)) for name in self.names()}
        return [name for name, keys in needs.items() if keys and keys <= given]


class PluginSection(Section):
    """A section whose keys are its own and those of the plug-in that it chooses."""

    plugins: ClassVar[Plugins]
    options: Options | None = None
    """What the plug-in reads."""
    _unread: dict[str, Any] = PrivateAttr(default_factory=dict)
    _lacking: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    @cache
    def own_keys(cls) -> Mapping[str, FieldInfo]:
        """The section's own keys."""
        return {name: one for name, one in cls.model_fields.items() if name != "options"}

    @classmethod
    def known_keys(cls) -> dict[str, list[FieldInfo]]:
        """Its own keys, and the options of all plug-ins."""
        own = {name: [one] for name, one in cls.own_keys().items()}
        return own | {key: list(readers.values()) for key, readers in cls.plugins.readers().items()}

    @classmethod
    def keys_given(cls, values: Mapping[str, Any]) -> dict[str, FieldInfo]:
        """Every key that the section or its plug-in reads, and those given that only other plug-ins read.

        Raises:
            UsageError: the plug-in has an option of the name of one of the section's own keys.
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
        """The last arguments of the plug-in: its options, or nothing for a plug-in without options."""
        return () if self.options is None else (self.options,)

    @property
    def unread(self) -> Mapping[str, Any]:
        """Options that were given although the plug-in does not read them."""
        return self._unread

    @property
    def lacking(self) -> tuple[str, ...]:
        """Options that the plug-in requires and that were not given."""
        return self._lacking

    @model_validator(mode="wrap")
    @classmethod
    def _with_options(cls, values: Any, handler: ModelWrapValidatorHandler[PluginSection]) -> PluginSection:
        if not isinstance(values, Mapping):
            return handler(values)
        known = cls.keys_given(values)
        own = {key: value for key, value in values.items() if key in cls.own_keys()}
        rest = {key: value for key, value in values.items() if key not in own}
        problems = [Problem((key,), unknown(str(key), cls.known_keys())) for key in rest if key not in known]
        given = {key: value for key, value in rest.items() if key in known and value is not None}
        reading = _Reading(cls.plugins.chosen(own), given, known)
        section = None
        try:
            section = handler({**own, "options": reading.options})
        except ValidationError as error:
            problems += problems_in(error, cls)
        if section is None or problems or reading.problems:
            raise Problems([*problems, *reading.problems])
        section._unread, section._lacking = reading.unread, reading.lacking
        return section


class _Reading:
    """The options of a section, as far as they are right."""

    def __init__(self, chosen: Chosen | None, given: Mapping[str, Any], known: Mapping[str, FieldInfo]) -> None:
        self.options: Options | None = None
        self.problems: list[Problem] = []
        self.lacking: tuple[str, ...] = ()
        self.unread: dict[str, Any] = {}
        kind = chosen.options if chosen else None
        own = {key: value for key, value in given.items() if kind and key in kind.model_fields}
        for key, value in given.items():
            if key not in own:
                self._read_one(key, value, known[key])
        if kind is SharedOptions:
            self.options, self.unread = SharedOptions(**self.unread), {}
        elif kind is not None:
            self._read(kind, own)
        if chosen is None:  # who reads them is not known
            self.unread = {}

    def _read(self, kind: type[Options], own: Mapping[str, Any]) -> None:
        self.lacking = tuple(key for key in required_keys(kind) if key not in own)
        try:
            self.options = kind.model_validate(own)
        except ValidationError as error:
            missing = {(key,) for key in self.lacking}
            self.problems += [one for one in problems_in(error, kind) if one.path not in missing]

    def _read_one(self, key: str, value: Any, one: FieldInfo) -> None:
        """Read an option by itself, as the first plug-in that has it does."""
        try:
            self.unread[key] = getattr(_alone(key, one)(**{key: value}), key)
        except ValidationError as error:
            self.problems += problems_in(error, _alone(key, one))


def _alone(key: str, one: FieldInfo) -> type[Section]:
    """A section of one option."""
    alone: type[Section] = create_model("Alone", __base__=Section, **{key: (one.annotation, one)})  # type: ignore[call-overload]
    return alone
