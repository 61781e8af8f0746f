"""What-ifs as text: keys of the scenario, scaled or replaced, and classes that no key names.

cluster.infiniband.bandwidth=2x       the value times two
cluster.nodes.1.speed=1.05            another value
workload.forward.1=0.5x               of one pipeline rank, if the scenario has one number for all
rank.1.time=0.75x                     all ops of a global rank; kind.B.time: all ops of a kind
links.bandwidth=2x  links.latency=0x  of all links; link.node0/nic0/out.bandwidth: of one
a=inf,b=0                             both at once
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from hybrid_des.analysis.counterfactual.variant import Variant, scaled_ops
from hybrid_des.errors import ScenarioError, UsageError, unknown
from hybrid_des.planning.program import Call
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario import Scenario, given_values, misnamed, scenario_of, to_mapping
from hybrid_des.scenario.composition import override
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.timeline import OP_KINDS

Build = Callable[[Sequence[str]], Scenario]  # overrides → scenario

_NEXT = re.compile(r",(?=\s*[A-Za-z_][\w./-]*=)")
_FACTOR = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*[x×]\s*")
_OWN = re.compile(r"(rank|kind|link)\.(.+)\.(time|bandwidth)|links\.(bandwidth|latency)")


def builder_of(scenario: Scenario) -> Build:
    """A function that builds changed scenarios from one that was not read from a file."""
    given = cache(lambda: given_values(scenario))

    def build(overrides: Sequence[str]) -> Scenario:
        document = Document(copy.deepcopy(given()), "scenario")
        override(document, overrides)
        return scenario_of(document)

    return build


def variant_of(text: str, base: Variant, build: Build) -> Variant:
    """Read a what-if.

    Raises:
        UsageError: a key does not exist, or a value cannot be scaled or is not valid for its key.
    """
    label = f"--what-if {text}"
    overrides, own = [], []
    for part in _NEXT.split(text):
        key, equals, value = (one.strip() for one in part.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{label}: expected a key and a factor or value, such as cluster.nvlink.bandwidth=2x")
        if match := _OWN.fullmatch(key):
            own.append((match, value))
        else:
            overrides.append(_override(key, value, base.scenario, label))
    variant = base
    if overrides:
        try:
            scenario = build(overrides)
        except ScenarioError as error:
            raise UsageError(f"{label}: {error.problems[0].partition(': ')[2] or error}") from None
        variant = Variant(scenario, None, fabric_of(scenario) if own else None)
    for match, value in own:
        variant = _with(variant, match, value, label)
    return variant


def _override(key: str, value: str, scenario: Scenario, label: str) -> str:
    """A part as an override of the scenario: a factor is applied; to change one entry, the whole list is replaced."""
    if (wrong := misnamed(key)) is not None:
        raise UsageError(f"{label}: {key}: {wrong}")
    factor = _FACTOR.fullmatch(value)
    name, _, last = key.rpartition(".")
    if name and last.isdecimal():
        found = _at(to_mapping(scenario), name, label)
        if not isinstance(found, dict | list):
            found = [found] * scenario.parallel.pipeline
            if int(last) >= len(found):
                raise UsageError(f"{label}: there are {len(found)} pipeline ranks; it has no {last}")
            found[int(last)] = _scaled(found[int(last)], factor, label) if factor else value
            return f"{name}=[{', '.join(map(_written, found))}]"
    if factor is None:
        return f"{key}={value}"
    return f"{key}={_written(_scaled(_at(to_mapping(scenario), key, label), factor, label))}"


def _at(mapping: Mapping[str, Any], key: str, label: str) -> Any:
    """The value of a key in a scenario."""
    at: Any = mapping
    for name in key.split("."):
        try:
            at = at[int(name)] if isinstance(at, list) else at[name]
        except (KeyError, IndexError, TypeError, ValueError):
            raise UsageError(f"{label}: the scenario has no value there to scale; give a value") from None
    return at


def _scaled(value: Any, factor: re.Match[str], label: str) -> Any:
    times = Fraction(factor[1])
    if value == "inf":
        return value
    if isinstance(value, list):
        return [_scaled(one, factor, label) for one in value]
    try:
        number = Fraction(str(value)) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None:
        raise UsageError(f"{label}: {value} is not a number that can be scaled")
    return number * times


def _written(value: Any) -> str:
    """A value as YAML; a fraction without a finite decimal is rounded to 17 digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Fraction):
        return str(value.numerator) if value.denominator == 1 else _decimal(value)
    return str(value)


def _decimal(value: Fraction) -> str:
    digits = 30
    return f"{round(value * 10**digits)}e-{digits}"


def _with(variant: Variant, match: re.Match[str], value: str, label: str) -> Variant:
    """A variant with a scaled class that is not a key of the scenario."""
    sort, name, what, all_of = match.groups()
    infinite = value == "inf" and "bandwidth" in (what, all_of)
    factor = _FACTOR.fullmatch(value)
    if factor is None and not infinite:
        raise UsageError(f"{label}: expected a factor such as 0.5x{' or inf' if 'bandwidth' in (what, all_of) else ''}")
    times = None if factor is None else Fraction(factor[1])
    if times == 0 and "bandwidth" in (what, all_of):
        raise UsageError(f"{label}: a bandwidth of 0 delivers nothing")
    if all_of == "latency":
        assert times is not None
        return variant.with_latency(times)
    if all_of == "bandwidth":
        return variant.with_all_links(times)
    if sort == "link" and what == "bandwidth":
        assert variant.fabric is not None
        if name not in variant.fabric.links:
            raise UsageError(f"{label}: {unknown(name, variant.fabric.links)}")
        return variant.with_links({name: times})
    if what != "time" or times is None:
        raise UsageError(f"{label}: {sort}.{name} has a {'bandwidth' if sort == 'link' else 'time'}")
    return variant.with_retime(scaled_ops(times, _ops(variant, sort, name, label)))


def _ops(variant: Variant, sort: str, name: str, label: str) -> Callable[[int, Call], bool]:
    ranks = variant.scenario.parallel.layout.ranks
    if sort == "rank":
        if not name.isdecimal() or int(name) >= ranks:
            raise UsageError(f"{label}: there is no rank {name}; ranks are 0 … {ranks - 1}")
        return of_ranks(frozenset([int(name)]))
    if name not in OP_KINDS:
        raise UsageError(f"{label}: {unknown(name, OP_KINDS)}")
    return of_kind(name)


def of_ranks(ranks: frozenset[int]) -> Callable[[int, Call], bool]:
    """The ops of some global ranks."""
    return lambda rank, _: rank in ranks


def of_kind(kind: str) -> Callable[[int, Call], bool]:
    """The ops of a kind, as named in the timeline."""
    return lambda _, call: kind_of(call) == kind


def kind_of(call: Call) -> str:
    """The kind of a call's ops, as named in the timeline."""
    kinds = [op.kind for op in call.ops]
    return "optimizer" if not kinds else "FB" if len(kinds) == 2 else "B" if kinds == ["I"] else str(kinds[0])
