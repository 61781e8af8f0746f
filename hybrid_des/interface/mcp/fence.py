"""A fence around the folder of the server: a process behind it opens and changes no other files.

Python tells audit hooks before it opens, makes, moves or removes a file (PEP 578); a hook that raises prevents it. No
code of users runs behind the fence: no plug-ins are imported, and scripts are read, not run.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hybrid_des.scenario.shipped import shipped_folder

READS = ("/proc", "/sys", "/dev", "/usr/lib", "/lib")  # of the system; of Python also what is installed
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEVICES = (os.devnull, "/dev/shm")
CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1, "os.rename": 2,
           "os.link": 2, "os.symlink": 2}  # event → how many of its arguments are paths  # fmt: skip


def fenced(folder: Path) -> Callable[[str, tuple[object, ...]], None]:
    """The hook that keeps a process within a folder; reading what is installed, and the shipped files, is allowed.

    A file elsewhere raises PermissionError, whose text says why.
    """
    package = Path(__file__).resolve().parents[2]
    beside = [package.parent / name for name in ("docs", "CHANGELOG.md")]  # in a checkout
    installed = [sys.prefix, sys.base_prefix, *(one for one in sys.path if one.endswith("site-packages"))]
    allowed = (folder, package, shipped_folder(), *beside, *installed, *READS)
    readable = [os.path.realpath(str(one)) for one in allowed]
    writable = [os.path.realpath(str(one)) for one in (folder, *DEVICES)]

    def refuse(path: object, allowed: list[str]) -> None:
        if isinstance(path, str | bytes | os.PathLike):  # not a descriptor
            real = os.path.realpath(os.fsdecode(path))
            if not any(real == one or real.startswith(one.rstrip(os.sep) + os.sep) for one in allowed):
                raise PermissionError(
                    errno.EACCES, f"outside of {folder}, the folder of this server", os.fsdecode(path)
                )

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = bool(flags & WRITES) if isinstance(flags, int) else False
            refuse(path, writable if writes else readable)
        elif event in CHANGES:
            for path in arguments[: CHANGES[event]]:
                refuse(path, writable)

    return hook
