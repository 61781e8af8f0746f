"""Files that a user names: opened without ever blocking, and read within a limit."""

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from hybrid_des.errors import LONGEST_SHOWN, UsageError, beside, one_line

LARGEST = 16 * 2**20  # bytes of a text file; a run of a benchmark prints a few KiB
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TEXTS = "a table or the output of one benchmark"
_OPEN_STREAM = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")  # ends when its writer ends


def open_file(path: str | Path) -> BinaryIO:
    """Open a file, or a pipe that the shell has opened for this process, such as /dev/stdin.

    Raises:
        OSError: it cannot be opened, or is a directory, a named pipe or a device; `strerror` says which.
        ValueError: the path holds a null character.
    """
    if "\0" in str(path):
        raise ValueError("embedded null byte")  # in the same words on every version of Python
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a named pipe would wait
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISFIFO(mode) and _OPEN_STREAM.fullmatch(str(path)):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(mode):
            what = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
            raise OSError(errno.EINVAL, f"{what}, not a file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: str | Path, expected: str = TEXTS) -> str:
    """Read a text file; `expected` says what it should hold, for errors.

    Raises:
        UsageError: it cannot be read, is larger than `LARGEST` or is not text.
    """
    try:
        with open_file(path) as file:
            return read_stream(file, str(path), expected)
    except OSError as error:
        hint = beside(path) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{path}: {error.strerror or error}{hint}") from None
    except ValueError as error:  # a null character
        raise UsageError(f"{one_line(str(path).strip(), LONGEST_SHOWN)}: {error}") from None


def read_stream(file: BinaryIO, name: str, expected: str = TEXTS) -> str:
    """Read a text from an open file.

    Raises:
        UsageError: it is larger than `LARGEST` or is not text.
    """
    content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UsageError(f"{name}: larger than {LARGEST // 2**20} MiB; expected {expected}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not a text file") from None


def read_catalogue(path: Path) -> Any:
    """Read a YAML file of the package."""
    return parse_catalogue(path.read_text(encoding="utf-8"))


def parse_catalogue(text: str) -> Any:
    """Parse YAML of the package, by libyaml where PyYAML has it: ten times faster."""
    return yaml.load(text, LOADER)
