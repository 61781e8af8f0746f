"""How a scenario names the points of a wiring: GPUs and switches, by twos or along a route."""

from __future__ import annotations

from typing import Annotated, Any

from hybrid_des.scenario.values import Reads, describe


def _points(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise ValueError(f"expected a list of points such as [gpu0, switch0], found {describe(value)}")
    for before, point in zip([None, *value], value, strict=False):
        if not isinstance(point, str) or not point:
            raise ValueError(f"expected a point such as gpu0, found {describe(point)}")
        if point == before:
            raise ValueError(f'"{point}" is given twice in a row')
    return tuple(value)


def _two(value: Any) -> tuple[str, ...]:
    points = _points(value)
    if len(points) > 2:
        raise ValueError(f"expected two points such as [gpu0, switch0], found {len(points)}")
    return points


def _schema(**bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2, **bounds}


Two = Annotated[tuple[str, ...], Reads(_two, lambda: _schema(maxItems=2))]
Course = Annotated[tuple[str, ...], Reads(_points, _schema)]
