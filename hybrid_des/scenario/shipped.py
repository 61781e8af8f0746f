"""The scenarios that come with the package: found by name or by the path they have in the documentation, and copied."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hybrid_des.errors import UsageError, unknown
from hybrid_des.scenario.strict_yaml import read

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = _PACKAGE / "shipped", _PACKAGE.parent / "scenarios"  # installed, or in a checkout
_SCHEMA_LINE = re.compile(r"^# yaml-language-server:.*\n(?:#\n)?")
TABLES = ("sweep", "file"), ("data", "lengths", "file"), ("experts", "loads_file")
_BASE = re.compile(r"^base: .*$", flags=re.MULTILINE)


def located(path: str | Path) -> Path:
    """A path as it is, or that of the shipped file that the documentation calls so, if only that exists.

    Example:
        >>> located("scenarios/goodput/gpus_1024.yaml").name, located("mine.yaml").name
        ('gpus_1024.yaml', 'mine.yaml')
    """
    path = Path(path)
    first, *inner = path.parts or ("",)
    if first != "scenarios" or ".." in inner or path.exists():
        return path
    files = [folder.joinpath(*inner) for folder in _FOLDERS]
    return next((file for file in files if file.is_file()), path)


def shipped_alike(path: Path) -> str:
    """The end of a message about a file that does not exist: a shipped one of a similar name, if there is one."""
    import difflib  # needed only for errors

    name = path.with_suffix("").as_posix().removeprefix("scenarios/")
    near = difflib.get_close_matches(name, shipped(), n=1, cutoff=0.75)
    return f'; did you mean "scenarios/{near[0]}.yaml"?' if near else ""


def shipped_folder() -> Path:
    """The folder of the shipped scenarios: in the package or, in a checkout, beside it.

    Raises:
        UsageError: they are missing.
    """
    shipped = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if shipped is None:
        raise UsageError(f"{_FOLDERS[0]}: the scenarios are missing; install hybrid-des again")
    return shipped


def shipped() -> dict[str, Path]:
    """Every shipped scenario by its name, such as "a100_8x" and "experiments/chunks"; those at the top first."""
    folder = shipped_folder()
    files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.relative_to(folder).parts) > 1, file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files if file.stem != "base"}


def shipped_description(file: Path) -> str:
    """What a scenario shows: its description, or else the first sentence of its opening comment."""
    text = read(file).value.get("description")
    if text:
        return str(text)
    comment = " ".join(re.findall(r"^# ?(.*)$", without_schema_line(file), flags=re.MULTILINE))
    return comment.partition(". ")[0].strip().removesuffix(".")


def with_bases(name: str) -> dict[str, str]:
    """The texts of a shipped scenario and of the files that it builds on, by the names of their copies in one folder.

    Raises:
        UsageError: there is no such scenario.
    """
    known = shipped()
    if name not in known:
        raise UsageError(f"{unknown(name, known)}; hybrid-des init lists all")
    file: Path | None = known[name]
    copy, files = known[name].name, {}
    while file is not None:
        values = read(file).value
        files[copy] = without_schema_line(file)
        for beside in files_of(values):
            files[beside] = (file.parent / beside).read_text(encoding="utf-8")
        base = values.get("base")
        file = (file.parent / str(base)).resolve() if base else None
        if file is not None:
            above, copy = copy, file.name if file.name not in files else f"{file.stem}_base.yaml"
            files[above] = _BASE.sub(f"base: {copy}", files[above])
    return files


def files_of(values: Mapping[str, object]) -> Iterator[str]:
    """The tables that a scenario reads beside its own file: rows of a sweep, lengths of documents, loads of experts."""
    for path in TABLES:
        value: object = values
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            yield value


def without_schema_line(file: Path) -> str:
    """The text of a scenario without the line that points an editor to the schema in a checkout."""
    return _SCHEMA_LINE.sub("", file.read_text(encoding="utf-8"))
