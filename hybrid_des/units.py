"""Quantities with units, parsed exactly: "25 GB/s" is the fraction 25·10⁹; times round to whole picoseconds.

kB, MB, GB are powers of ten; KiB, MiB, GiB powers of two; `b` is a bit and `B` a byte; 400 Gbps is 400 Gb/s.
Plain numbers are SI base units: s, B, B/s, FLOP/s, W. Whole numbers are split, and items grouped, here too.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Literal, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

PICOSECONDS_PER_SECOND = 10**12

# span: a time of up to millennia
Dimension = Literal["time", "span", "size", "bandwidth", "compute", "power", "number"]

_TIME = {
    "ps": Fraction(1, 10**12),
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # U+00B5, the micro sign
    "μs": Fraction(1, 10**6),  # U+03BC, the Greek letter
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SIZE = {
    prefix + suffix: Fraction(factor, 8 if suffix == "b" else 1)
    for prefix, factor in {**_DECIMAL, **_BINARY}.items()
    for suffix in ("B", "b")
}
_UNITS: dict[str, dict[str, Fraction]] = {
    "time": _TIME,
    "span": _TIME,
    "size": _SIZE,
    "bandwidth": {f"{unit}{per}": factor for unit, factor in _SIZE.items() for per in ("/s", "ps")},
    "compute": {
        f"{prefix}{unit}": Fraction(factor) for prefix, factor in _DECIMAL.items() for unit in ("FLOP/s", "FLOPS")
    },
    "power": {f"{prefix}W": Fraction(_DECIMAL[prefix]) for prefix in ("", "k", "M")},
    "number": {"": Fraction(1)},
}
EXAMPLES = {
    "time": "a time such as 50 ms",
    "span": "a time such as 30 min or 54 d",
    "size": "a size such as 64 MiB",
    "bandwidth": "a bandwidth such as 25 GB/s or 200 Gb/s",
    "compute": "a rate such as 312 TFLOP/s",
    "power": "a power such as 700 W or 2 kW",
    "number": "a plain number such as 125e6",
}
LARGEST = Fraction(10**300)  # both it and its inverse fit into a float
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\d\s.+-]\S*)?\s*")


def parse_quantity(value: str | int | float | Fraction, dimension: Dimension) -> Fraction:
    """Read a quantity exactly, in SI base units of its dimension.

    Raises:
        ValueError: it is not such a quantity; the message says what was expected.
    """
    if isinstance(value, bool):
        raise ValueError(f"expected {EXAMPLES[dimension]}, not {str(value).lower()}")
    if isinstance(value, float):
        value = repr(float(value))  # 0.1 in a file means one tenth, not the nearest binary fraction
    number = _parse_text(value, dimension) if isinstance(value, str) else Fraction(value)
    if number < 0:
        raise ValueError(f"{value} is negative; expected {EXAMPLES[dimension]}")
    if number and not 1 / LARGEST <= number <= LARGEST:
        raise ValueError(f"{value} is too {'large' if number > 1 else 'small'}; expected {EXAMPLES[dimension]}")
    return number


def _parse_text(text: str, dimension: Dimension) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a quantity; expected {EXAMPLES[dimension]}')
    number, unit = match.groups()
    if unit is None:
        return Fraction(number)
    units = _UNITS[dimension]
    if unit not in units:
        for other, known in _UNITS.items():
            if unit in known:
                raise ValueError(f'"{text}" is a {other}; expected {EXAMPLES[dimension]}')
        near = [known for known in units if known.lower() == unit.lower()]
        raise ValueError(f'unknown unit "{unit}"; expected {" or ".join(near) or EXAMPLES[dimension]}')
    return Fraction(number) * units[unit]


def to_picoseconds(seconds: Fraction | int) -> int:
    """Round seconds to the nearest whole picosecond, ties to even."""
    return round(seconds * PICOSECONDS_PER_SECOND)


def to_seconds(picoseconds: int | Fraction) -> float:
    """Convert picoseconds to the nearest floating-point number of seconds."""
    return float(Fraction(picoseconds, PICOSECONDS_PER_SECOND))


def split_evenly(total: int, parts: int) -> list[int]:
    """Split an integer into `parts` integers that differ by at most one."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def grouped_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by a key; keys, and the items of each, in the order in which they appear."""
    return collected((key(item), item) for item in items)


def collected(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """The items that each key is paired with; keys, and the items of each, in the order in which they appear."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def format_share(share: Fraction | float, digits: int = 1) -> str:
    """A share in percent with as many decimal places: "45.6 %"."""
    return f"{100 * float(share):.{digits}f} %"


def format_change(share: float, digits: int = 1) -> str:
    """A relative change in percent with as many decimal places, or "0 %" if that is none: "−2.4 %"."""
    text = f"{100 * share:+.{digits}f} %".replace("-", "−")
    return text if any(figure in text for figure in "123456789") else "0 %"


def format_number(number: float) -> str:
    """Format a number with four digits and without an exponent: "1.21", "12,346"."""
    return f"{number:.4g}" if abs(number) < 9999.5 else f"{number:,.0f}"


def as_number(word: str) -> int | float | str:
    """A word as the number that it is, or as itself."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def in_units(number: float, units: Iterable[tuple[float, str]], otherwise: str) -> str:
    """A number in the first of these units that it reaches, with four digits."""
    return next((f"{number / size:.4g} {unit}" for size, unit in units if number >= size), otherwise)


SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))  # units of times that are shown


def format_seconds(seconds: float) -> str:
    """Format a time: "1.210 s", "70.01 ms", "3.2 µs"."""
    for factor, unit in SECONDS:
        if seconds >= factor:
            return f"{format_number(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-12:.4g} ps"


def signed_seconds(seconds: float) -> str:
    """Format a difference of times: "−3.2 µs"."""
    return f"−{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def format_bytes(size: float) -> str:
    """Format a size in powers of ten: "1.2 GB"."""
    units = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return in_units(size, units, f"{size:.4g} B")


def format_binary_bytes(size: float) -> str:
    """Format a size in powers of 1024, as buffers of benchmarks are: "64 MiB"."""
    units = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return in_units(size, units, f"{size:.4g} B")


def format_bandwidth(bandwidth: Fraction | None) -> str:
    """Format bytes per second: "25 GB/s"; None is infinite."""
    return "inf" if bandwidth is None else f"{format_bytes(float(bandwidth))}/s"
