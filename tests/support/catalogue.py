"""Models of the catalogue in other words, and those that stand for others with the same settings."""

from typing import Any

from hybrid_des.workload.models.catalogue import expanded, names
from hybrid_des.workload.models.kinds.pattern import expanded as names_in

TRANSFORMERS = [name for name in names() if expanded({"base": name}).get("vocab")]


def kinds_in_other_words(name: str) -> dict[str, Any]:
    """A model of the catalogue with one kind for all of its blocks, or, where it has several, one for each block."""
    own = expanded({"base": name})
    if "pattern" not in own:
        return {"base": name, "kinds": {"a": {}}, "pattern": "a"}
    order = names_in(own["pattern"]) * own["layers"]
    each = {f"b{place}": own["kinds"][order[place]] for place in range(own["layers"])}
    if isinstance(own.get("predictions"), dict):
        again = " ".join(f"b{order.index(kind)}" for kind in names_in(own["predictions"]["kinds"]))
        own["predictions"] = {**own["predictions"], "kinds": again}
    return {**own, "kinds": each, "pattern": " ".join(each)}


def without_numbers(value: Any) -> Any:
    """The settings of a model without its numbers, lists and order of kinds."""
    if isinstance(value, dict):
        return frozenset((key, without_numbers(one)) for key, one in value.items() if key not in ("source", "pattern"))
    return value if isinstance(value, str | bool) else None


def shallowest() -> set[str]:
    """Of models whose settings are the same but for numbers, lists and order of kinds, the one of fewest layers."""
    least: dict[Any, str] = {}
    for name in sorted(TRANSFORMERS, key=lambda name: expanded({"base": name})["layers"]):
        least.setdefault(without_numbers(expanded({"base": name})), name)
    return set(least.values())
