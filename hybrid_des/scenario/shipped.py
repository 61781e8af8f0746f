"""The scenarios shipped with the package: found by name, and copied with the files that they build on."""

import re
from pathlib import Path

from hybrid_des.errors import UsageError, unknown
from hybrid_des.scenario.strict_yaml import read

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED, _CHECKOUT = _PACKAGE / "shipped", _PACKAGE.parent / "scenarios"
_SCHEMA_LINE = re.compile(r"^# yaml-language-server:.*\n(?:#\n)?")


def shipped_folder() -> Path:
    """The folder of the shipped scenarios: in the package or, in a checkout, beside it.

    Raises:
        UsageError: they are missing.
    """
    found = next((folder for folder in (_INSTALLED, _CHECKOUT) if folder.is_dir()), None)
    if found is None:
        raise UsageError(f"{_INSTALLED}: the scenarios are missing; install hybrid-des again")
    return found


def shipped() -> dict[str, Path]:
    """Every shipped scenario and experiment by its name, such as "a100_8x" and "experiments/chunks"."""
    folder = shipped_folder()
    files = [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("experiments/*.yaml"))]
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files if file.stem != "base"}


def shipped_description(file: Path) -> str:
    """What a scenario shows: its description, or else the first sentence of its opening comment."""
    text = read(file).value.get("description")
    if text:
        return str(text)
    comment = " ".join(re.findall(r"^# ?(.*)$", without_schema_line(file), flags=re.MULTILINE))
    return comment.partition(". ")[0].strip().removesuffix(".")


def with_bases(name: str) -> dict[str, str]:
    """The texts of a shipped scenario and of the files that it builds on, by the names of their copies.

    Raises:
        UsageError: there is no such scenario.
    """
    known = shipped()
    if name not in known:
        raise UsageError(f"{unknown(name, known)}; hybrid-des scenarios lists all")
    file: Path | None = known[name]
    found = {}
    while file is not None:
        found[file.name] = without_schema_line(file)
        base = read(file).value.get("base")
        file = file.parent / base if base else None
    return found


def without_schema_line(file: Path) -> str:
    """The text of a scenario without the line that points an editor to the schema in a checkout."""
    return _SCHEMA_LINE.sub("", file.read_text(encoding="utf-8"))
