"""What a profile is, told by the content of its files: names and suffixes are not trusted."""

from __future__ import annotations

import atexit
import glob
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.files import open_file
from hybrid_des.interchange.profiles.foreign import foreign
from hybrid_des.scenario.shipped import located

HEAD = 1 << 16  # bytes that tell formats apart; a profiler's trace begins with facts about the machine
GZIP = b"\x1f\x8b"
ANY_WINDOW = 47  # zlib's window size for gzip or zlib
MOST_FILES = 1 << 14
BOM = b"\xef\xbb\xbf"
JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*[{[]\s*(?:[\[{\]}"]|\Z)')  # how a file that is JSON begins
GROUPS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"[^"]{0,100}"\s*:\s*\[\s*\d')  # ranks of process groups by name
TEXT = re.compile(rb"[\t\n\r\x20-\xff]*")  # a file without control characters

TABLE, DUMP, KINETO, CHAKRA, CONFIG = "table", "event dump", "Kineto", "Chakra", "config"
WHAT = {
    CHAKRA: "a Chakra execution trace",
    TABLE: "a table of durations",
    DUMP: "a Primus or Megatron event dump",
    KINETO: "a PyTorch profiler trace",
}
EXPECTED = "expected a PyTorch profiler trace, an event dump, a Chakra trace, a timeline or a table of durations"


class Profile(NamedTuple):
    """A profile.

    Attributes:
        format: of its files.
        files: in order.
        ignored: files beside them that are of another format.
        unpacked: temporary folders, each with the archive whose files it holds.
    """

    format: str
    files: tuple[Path, ...]
    ignored: tuple[Path, ...] = ()
    unpacked: tuple[tuple[Path, Path], ...] = ()

    def told(self, text: object) -> str:
        """A text in which members of archives have their names there, not those of temporary files."""
        message = str(text)
        for folder, archive in reversed(self.unpacked):  # an archive in an archive comes later
            message = message.replace(str(folder), str(archive))
        return message

    @contextmanager
    def told_errors(self) -> Iterator[None]:
        """Within it, errors name members of archives."""
        try:
            yield
        except UsageError as error:
            if not self.unpacked:
                raise
            raise UsageError(self.told(error)) from None

    @property
    def name(self) -> str:
        """What a scenario made of it is called: as its folder or, of one file, as the file."""
        first = self.files[0]
        named = first.resolve().parent.name if len(self.files) > 1 else first.name.partition(".")[0]
        return named or "imported"


def recognized(target: str | Path | Sequence[str | Path]) -> Profile:
    """The profile in files, folders, archives (tar, zip), or the files that match patterns.

    Of a folder with files of several formats, such as one written with `--out`, the first one in the order of `WHAT` is
    taken.

    Raises:
        UsageError: there is none, or a file cannot be read.
    """
    targets = [located(path) for path in ([target] if isinstance(target, str | Path) else target)]
    unpacked: list[tuple[Path, Path]] = []
    paths = [path for one in targets for path in _paths(one, unpacked)]
    none = Profile("", (), unpacked=tuple(unpacked))
    with none.told_errors():
        formats = {path: format_of(path) for path in paths}
    for kind in WHAT:
        if chosen := [path for path in paths if formats[path] == kind]:
            rest = tuple(path for path in paths if formats[path] not in (kind, CONFIG))
            return Profile(kind, tuple(chosen), rest, none.unpacked)
    if len(paths) == 1:
        raise UsageError(f"{none.told(paths[0])}: {what_is(paths[0])}; {to_do(paths[0])}")
    named = next((path for path in paths if foreign(head_of(path), path) is not None), None)
    known = EXPECTED if named is None else f"{none.told(named.name)} is {what_is(named)}; {to_do(named)}"
    raise UsageError(f"{' '.join(map(str, targets))}: none of its {len(paths)} files is a profile; {known}")


def is_archive(path: Path) -> bool:
    """Whether a file is an archive, whose files are read."""
    import tarfile  # takes 5 ms, and every scenario may have a profile

    return path.is_file() and (tarfile.is_tarfile(path) or zipfile.is_zipfile(path))


def _paths(target: str | Path, unpacked: list[tuple[Path, Path]]) -> list[Path]:
    """The files in a target; folders with those of archives are appended to `unpacked`."""
    path = Path(target)
    if path.is_dir():
        paths = _files(path.iterdir()) or _files(path.glob("*/*")) or _files(path.glob("*/*/*"))
    elif path.exists() or not glob.has_magic(str(target)):
        paths = [path]
    else:
        paths = sorted(Path(one) for one in glob.glob(str(target)) if Path(one).is_file())  # noqa: PTH207 (may be absolute)
    if not paths:
        raise UsageError(f"{target}: {'an empty folder' if path.is_dir() else 'no file matches'}; {EXPECTED}")
    if len(paths) > MOST_FILES:
        raise UsageError(f"{target}: {len(paths)} files; at most {MOST_FILES}")
    inside = {}
    for archive in filter(is_archive, paths):
        unpacked.append((_unpacked(archive), archive))
        inside[archive] = _paths(unpacked[-1][0], unpacked)
    return sorted((each for one in paths for each in inside.get(one, [one])), key=natural)


def _unpacked(archive: Path) -> Path:
    """A folder with the files of an archive, which lasts as long as the program."""
    import tarfile

    outer = tempfile.mkdtemp(prefix="hybrid-des-")
    atexit.register(shutil.rmtree, outer, ignore_errors=True)
    folder = Path(outer, archive.name.partition(".")[0])  # names the profile
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise UsageError(f"{archive}: cannot be unpacked: {error}") from None
    return folder


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(one for one in paths if one.is_file() and not one.name.startswith("."))


def natural(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers in names by value."""
    pieces = filter(None, re.split(r"(\d+)", path.name))
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def head_of(path: Path) -> bytes:
    """The first bytes of a file, unpacked.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with open_file(path) as file:
            head = file.read(HEAD)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(ANY_WINDOW).decompress(head, HEAD)
    except zlib.error:
        raise UsageError(f"{path}: not a whole gzip file") from None


def format_of(path: Path) -> str | None:
    """The format of a file; None if it is no profile."""
    head = head_of(path)
    return next((name for name, matches in _MARKS.items() if matches(head, path)), None)


def what_is(path: Path) -> str:
    """What a file is, in words, for messages."""
    known = format_of(path)
    if known in WHAT:
        return WHAT[known]
    head = head_of(path)
    if not head.strip():
        return "it is empty"
    if (named := foreign(head, path)) is not None:
        return named[0]
    return "JSON of an unknown kind" if _is_json(head) else "a file of an unknown kind"


def to_do(path: Path) -> str:
    """What to do about a file that is no profile, in words."""
    named = foreign(head_of(path), path)
    return EXPECTED if named is None else named[1]


def _is_json(head: bytes) -> bool:
    return JSON.match(head) is not None


def _has(head: bytes, *words: bytes) -> bool:
    """Whether it is JSON in which one of these words stands."""
    return _is_json(head) and any(b'"' + word + b'"' in head for word in words)


def _is_chakra(head: bytes, path: Path) -> bool:
    if _is_json(head):
        return _has(head, b"workload_graph")
    return path.suffix == ".et" or (b"is_cpu_op" in head and TEXT.fullmatch(head) is None)


def _is_table(head: bytes, path: Path) -> bool:
    if head.startswith(b"PAR1"):
        return True
    columns = {cell.strip().strip(b'"') for cell in head.removeprefix(BOM).partition(b"\n")[0].split(b",")}
    return bool(columns & {b"microbatch", b"micro_batch", b"micro-batch", b"mb_id"})


_MARKS: dict[str, Callable[[bytes, Path], bool]] = {
    DUMP: lambda head, path: _has(head, b"fwd_start", b"fwd_end", b"bwd_start"),
    CONFIG: lambda head, path: _has(head, b"pp_size") or GROUPS.match(head) is not None,
    CHAKRA: _is_chakra,
    KINETO: lambda head, path: _has(head, b"traceEvents", b"schemaVersion", b"deviceProperties", b"ph"),
    TABLE: _is_table,
}
