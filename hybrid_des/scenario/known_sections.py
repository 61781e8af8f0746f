"""A cache of validated sections: scenarios that differ in a few, as in a search, do not validate the rest again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from uuid import uuid4

from hybrid_des.options import Section
from hybrid_des.scenario.defaults import FilledValues, fill
from hybrid_des.scenario.definition import Scenario

MOST = 1024  # of a few kilobytes each


class KnownSections:
    """The valid sections of a family of scenarios, by name and content.

    Those of one family are for the plug-ins that are registered while it is read. In another process a copy begins
    anew, which all copies of the same one share there.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name or uuid4().hex
        self._known: dict[tuple[str, str], Section] = {}

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _named, (self._name,)

    def scenario_of(self, values: Mapping[str, object]) -> Scenario:
        """The scenario of plain values, as `Scenario.model_validate` has it, with its errors.

        Raises:
            ValidationError: the values make none.
        """
        try:
            filled = fill(values)
        except ValueError:  # validation reports it
            return Scenario.model_validate(values)
        texts = {name: repr(value) for name, value in filled.items() if isinstance(value, dict)}
        known = {key[0]: self._known[key] for key in texts.items() if key in self._known}
        scenario = Scenario.model_validate(FilledValues({**filled, **known}))
        for name in texts.keys() - known.keys():
            if isinstance(section := getattr(scenario, name), Section):
                self._known[name, texts[name]] = section
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return scenario


@lru_cache(maxsize=4)
def _named(name: str) -> KnownSections:
    return KnownSections(name)
