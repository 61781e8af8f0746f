"""Random changes to texts and to nested values; each takes a text and a source of randomness."""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from system.fuzzing.materials import GIVEN, LARGE, NUMBERS, STRANGE, key_paths

QUANTITIES, WORDS = GIVEN["quantities"], GIVEN["words"]
Change = Callable[[str, Random], str]
TOKEN = re.compile(r"[\w.%µ+-]+|[^\w\s]")
NUMBER = re.compile(r"(?<![\w.])\d[\w.]*")
KEY = re.compile(r"[A-Za-z_]\w*(?=\s*:)")


def mutated(text: str, rng: Random, changes: Sequence[Change] = ()) -> str:
    """One to four random changes, mostly one or two."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        text = rng.choice(changes or CHANGES)(text, rng)
    return text[:200_000]


def any_value(rng: Random) -> str:
    """A value that may stand where a scenario, table or argument has one."""
    pool = rng.choice((NUMBERS, NUMBERS, QUANTITIES, QUANTITIES, WORDS, WORDS, STRANGE))
    return rng.choice(pool) if rng.random() < 0.998 else rng.choice(LARGE)


def _spot(pattern: re.Pattern[str], text: str, rng: Random) -> tuple[int, int]:
    spans = [match.span() for match in pattern.finditer(text)]
    return rng.choice(spans) if spans else (0, 0)


def replace_token(text: str, rng: Random) -> str:
    start, end = _spot(TOKEN, text, rng)
    return text[:start] + any_value(rng) + text[end:]


def replace_number(text: str, rng: Random) -> str:
    start, end = _spot(NUMBER, text, rng)
    return text[:start] + rng.choice(rng.choice((NUMBERS, NUMBERS, QUANTITIES))) + text[end:]


def drop_token(text: str, rng: Random) -> str:
    start, end = _spot(TOKEN, text, rng)
    return text[:start] + text[end:]


def swap_tokens(text: str, rng: Random) -> str:
    (a, b), (c, d) = sorted((_spot(TOKEN, text, rng), _spot(TOKEN, text, rng)))
    return text if c < b else text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def rename_key(text: str, rng: Random) -> str:
    start, end = _spot(KEY, text, rng)
    name = text[start:end]
    other = rng.choice((name[1:], name + "s", name.upper(), rng.choice(key_paths()).rpartition(".")[2], name + " "))
    return text[:start] + other + text[end:]


def list_for_scalar(text: str, rng: Random) -> str:
    start, end = _spot(re.compile(r"(?<=: )[^\n,{}\[\]]+"), text, rng)
    items = [text[start:end] if rng.random() < 0.7 else any_value(rng) for _ in range(rng.randrange(4))]
    return f"{text[:start]}[{', '.join(items)}]{text[end:]}"


def insert_strange(text: str, rng: Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(STRANGE) + text[at:]


def change_character(text: str, rng: Random) -> str:
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + chr(rng.choice((rng.randrange(128), rng.randrange(256), 0xDC80 + rng.randrange(128))))
        + text[at + 1 :]
    )


def _by_lines(change: Callable[[list[str], Random], list[str]]) -> Change:
    return lambda text, rng: "\n".join(change(text.split("\n"), rng))


def _drop_line(lines: list[str], rng: Random) -> list[str]:
    at = rng.randrange(len(lines))
    return lines[:at] + lines[at + 1 :]


def _repeat_line(lines: list[str], rng: Random) -> list[str]:
    at = rng.randrange(len(lines))
    return lines[: at + 1] + [lines[at]] * rng.choice((1, 1, 1, 2, 60)) + lines[at + 1 :]


def _swap_lines(lines: list[str], rng: Random) -> list[str]:
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return lines


def _indent_line(lines: list[str], rng: Random) -> list[str]:
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((" ", "  ", "\t", "- ", "    ")) + rng.choice((lines[at], lines[at].strip()))
    return lines


def _cut_lines(lines: list[str], rng: Random) -> list[str]:
    a, b = sorted((rng.randrange(len(lines) + 1), rng.randrange(len(lines) + 1)))
    return lines[:a] + lines[b:]


def cut_off(text: str, rng: Random) -> str:
    return text[: rng.randint(0, len(text))]


def other_ends(text: str, rng: Random) -> str:
    return text.replace("\n", rng.choice(("\r\n", "\r", "\n\n", "\x85", "\u2028")))


def other_start(text: str, rng: Random) -> str:
    return (
        rng.choice(("\ufeff", "\udcff\udcfe", "---\n", "%YAML 1.1\n---\n", "\n" * 50, "\x00", "# " + "x" * 5000 + "\n"))
        + text
    )


def tabs(text: str, rng: Random) -> str:
    return text.replace("  ", "\t")


CHANGES: tuple[Change, ...] = (
    *(replace_token,) * 4, *(replace_number,) * 5, drop_token, swap_tokens, *(rename_key,) * 2, *(list_for_scalar,) * 3,
    insert_strange, insert_strange, change_character, cut_off, other_ends, other_start, tabs,
    *map(_by_lines, (_drop_line, _drop_line, _repeat_line, _swap_lines, _indent_line, _cut_lines)),
)  # fmt: skip
CELLS: tuple[Change, ...] = (
    replace_number, replace_number, drop_token, swap_tokens, swap_tokens, replace_token, insert_strange,
    change_character, cut_off, other_ends, other_start,
    *map(_by_lines, (_drop_line, _repeat_line, _swap_lines, _cut_lines)),
)  # fmt: skip


def changed_value(values: Any, rng: Random) -> Any:
    """A copy of nested mappings and lists with one place replaced, removed, renamed or moved."""
    if isinstance(values, dict) and values and rng.random() < 0.95:
        key = rng.choice(list(values))
        if isinstance(values[key], dict | list) and rng.random() < 0.8:
            return {**values, key: changed_value(values[key], rng)}
        others = {name: value for name, value in values.items() if name != key}
        how = rng.randrange(8)
        if how == 0:
            return others
        if how == 1:
            return {**others, rename_key(f"{key}:", rng)[:-1]: values[key]}
        if how == 2:
            return {**values, rng.choice(list(values)): values[key]}
        if how == 3:
            return {**values, rng.choice(key_paths()).rpartition(".")[2]: any_value(rng)}
        return {**values, key: _other(values[key], rng)}
    if isinstance(values, list) and values and rng.random() < 0.9:
        at = rng.randrange(len(values))
        return rng.choice(
            (
                [*values[:at], changed_value(values[at], rng), *values[at + 1 :]],
                [*values[:at], changed_value(values[at], rng), *values[at + 1 :]],
                values[:at] + values[at + 1 :],
                [*values, values[at]],
            )
        )
    return _other(values, rng)


def _other(value: Any, rng: Random) -> Any:
    return rng.choice(
        (any_value(rng), any_value(rng), any_value(rng), [value, value], [], {}, None, {"a": value}, [any_value(rng)])
    )
