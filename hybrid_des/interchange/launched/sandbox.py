"""Commands inside of bubblewrap, where it is installed: what is there is read-only, and there is no network.

Options: man page of bwrap (github.com/containers/bubblewrap).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_ISOLATED = (
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "--tmpfs",
    "/tmp",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
)
_OWN = ("dev", "proc", "tmp", "run")  # of /; in the last are sockets of services, such as that of Docker


def sandboxed(readable: Sequence[Path], writable: Mapping[Path, Path], directory: Path) -> list[str]:
    """The words in front of a command that confine it.

    Args:
        readable: folders that it must see, though they may lie in /tmp or in one of those that it may write.
        writable: folders that it may write, by the place at which it sees them.
        directory: where it starts.
    """
    binds = [word for place, folder in writable.items() for word in ("--bind", str(folder), str(place))]
    binds += [word for folder in readable for word in ("--ro-bind", str(folder), str(folder))]
    return ["bwrap", *_root(), *_ISOLATED, *binds, "--chdir", str(directory), "--"]


def _root() -> list[str]:
    """What is in /, read-only; folders that are not there can be made, and are gone with the sandbox."""
    shown = [entry for entry in Path("/").iterdir() if entry.name not in _OWN or _has_programs(entry)]
    links = [word for entry in shown if entry.is_symlink() for word in ("--symlink", str(entry.readlink()), str(entry))]
    others = [word for entry in shown if not entry.is_symlink() for word in ("--ro-bind", str(entry), str(entry))]
    return [*others, *links]


def _has_programs(folder: Path) -> bool:
    """Whether it is /run, and programs are found there, as on NixOS."""
    return folder.name == "run" and any(one.startswith("/run/") for one in os.get_exec_path())


def unavailable() -> str:
    """Why commands cannot be confined here; empty if they can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    words = sandboxed([], {}, Path("/"))
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    said = tried.stderr.strip().splitlines()
    return f"bubblewrap cannot start here ({said[-1] if said else tried.returncode})" if tried.returncode else ""


def interpreter_in(folder: Path) -> list[Path]:
    """The installation of the running Python, if it lies in a folder."""
    prefix = Path(sys.base_prefix)
    return [prefix] if prefix.is_relative_to(folder) else []
