"""Kinds of blocks and their order: named changes to the keys of a model, and a pattern of their names.

    kinds: {linear: {mixer: mamba2}, full: {}}
    pattern: (linear*3 full)*12         names, n times, groups; a pattern shorter than the model repeats

What a kind states holds in all of its blocks, merged key by key, and `none` removes a key; `window_every` and
`experts.dense_layers` hold by place in the model for kinds that state no `window` and no `experts`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import GetJsonSchemaHandler, WrapValidator, create_model
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hybrid_des.errors import LONGEST_SHOWN, one_line, unknown
from hybrid_des.options import Reads, ReadsAs, Section, WrittenNone, describe
from hybrid_des.workload.models.kinds.registration import ModelRefusal

NONE = "none"
LONGEST = 2**14  # names: as many as blocks
_NAME = r"[A-Za-z_][\w.-]*"
_WORD = re.compile(rf"({_NAME})(?:\*(\d{{1,5}}))?")
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,5}))?")


def expanded(pattern: str) -> tuple[str, ...]:
    """The names of a pattern, in order, without repetition to the length of a model.

    Raises:
        ValueError: it is no pattern; one line that says why.
    """
    text = pattern
    while (group := _GROUP.search(text)) is not None:
        times = int(group[2] or 1)
        if times * len(group[1]) > 8 * LONGEST:
            raise ValueError(f"more than {LONGEST} blocks")
        text = f"{text[: group.start()]} {f'{group[1]} ' * times} {text[group.end() :]}"
    names: list[str] = []
    for word in text.split():
        repeated = _WORD.fullmatch(word)
        if repeated is None:
            shown = one_line(word, LONGEST_SHOWN)
            raise ValueError(f'found "{shown}"; expected names of `kinds`, as in (linear*3 full)*12')
        names += [repeated[1]] * int(repeated[2] or 1)
        if len(names) > LONGEST:
            raise ValueError(f"more than {LONGEST} blocks")
    if not names:
        raise ValueError("expected names of `kinds`, as in (linear*3 full)*12")
    return tuple(names)


def _read(value: Any) -> str:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = " ".join(value)
    if not isinstance(value, str):
        raise ValueError(f"expected names of `kinds`, as in (linear*3 full)*12, found {describe(value)}")
    expanded(value)
    return value


_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
Pattern = Annotated[str, Reads(_read, _SCHEMA)]


def names_in(pattern: str, kinds: Collection[str], option: str = "predictions") -> tuple[str, ...]:
    """The names of a pattern, all of which are those of kinds.

    Raises:
        ModelRefusal: one is not; it is said of the option.
    """
    names = expanded(pattern)
    for name in names:
        if name not in kinds:
            raise ModelRefusal(
                option, unknown(name, kinds) if kinds else f'"{name}" needs `kinds`, which are not given'
            )
    return names


def order_of(
    pattern: str | None, kinds: Collection[str], layers: int, predictions: Collection[str] = ()
) -> tuple[str, ...]:
    """The kind of every block; "" for each where there are no kinds. Some kinds may be those of predictions alone.

    Raises:
        ModelRefusal: the names are not those of the kinds, or their number does not divide that of the blocks.
    """
    if pattern is None:
        if kinds:
            raise ModelRefusal("pattern", f"is required by `kinds`: the order of {', '.join(kinds)}")
        return ("",) * layers
    names = names_in(pattern, kinds, "pattern")
    for name in kinds:
        if name not in names and name not in predictions:
            raise ModelRefusal(f"kinds.{name}", "no layer has it: `pattern` does not name it")
    if layers % len(names):
        raise ModelRefusal("pattern", f"{len(names)} names neither are nor divide the {layers} layers")
    return names * (layers // len(names))


class _Changes(Section):
    """Changes to the keys of a section."""

    of: ClassVar[type[Section]]
    besides: ClassVar[tuple[str, ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        return _changed, (self.of, self.besides, self.model_dump(exclude_unset=True, warnings=False))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = super().__get_pydantic_json_schema__(schema, handler)
        for name, field in handler.resolve_ref_schema(described).get("properties", {}).items():
            field.setdefault("description", f"`{name}` of these blocks; none: without")
        return described


@lru_cache(maxsize=16)
def changes_to(section: type[Section], besides: tuple[str, ...] = ()) -> type[Section]:
    """A section with the same keys, each optional, or `none` to remove it, without some keys."""
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if name in besides:
            continue
        kept = tuple(one for one in field.metadata if not isinstance(one, WrittenNone | ReadsAs))
        inner = _inner(field.annotation)
        whole: Any = Annotated[(inner, *kept)] if kept else inner
        fields[name] = (Annotated[whole | None, WrapValidator(_or_none)], None)
    about = "Changes of a model's keys for a kind of blocks; none removes one." if besides else None
    changes = create_model(f"{section.__name__}Changes", __base__=_Changes, __doc__=about, **fields)
    changes.of, changes.besides = section, besides
    return changes


def _changed(section: type[Section], besides: tuple[str, ...], values: Mapping[str, Any]) -> Section:
    """Changes that were pickled."""
    return changes_to(section, besides).model_validate(values)


def _inner(annotation: Any) -> Any:
    """The type of a field; of an optional section, that of changes to it."""
    parts = getattr(annotation, "__args__", ())
    sections = [one for one in parts if isinstance(one, type) and issubclass(one, Section)]
    return changes_to(sections[0]) if len(sections) == 1 and type(None) in parts else annotation


def _or_none(value: Any, read: Any) -> Any:
    return NONE if value == NONE else read(value)


def without_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes in which what is to be removed is None, as `catalogue.merged` takes it; a `mixer` may be none."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else None if value == NONE and key != "mixer" else value
        for key, value in changes.items()
    }
