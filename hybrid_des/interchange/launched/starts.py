"""Run a launch script on a copy of its folder, with stand-ins for what it starts, and collect what they noted."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.files import read_catalogue
from hybrid_des.interchange.launched import copying, sandbox, stand_in

LIMIT_S = 60.0  # until a script is ended
GPUS = 8  # of a node, as many as its script is told
_NOT_INHERITED = ("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ZE_", "HABANA_")
_HEADER = 2**16  # bytes of a script in which its lines for sbatch are
_LARGEST_FILE = 2**17  # blocks of 512 or 1,024 bytes that a script may write to one file
_KEPT = 16  # pieces of output, of at most 4 KiB
_PATIENCE_S = 1.0  # for the end of an output
_COMPILED = b"\x7fELF"
_OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL", "PATH", "BASH_ENV")
_PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(6, 20)))
_OTHERS = ("sbatch", "scontrol", "nvidia-smi", "git", "cd", "source", stand_in.ABSENT)


class Start(NamedTuple):
    """A program that a script would have started.

    Attributes:
        around: the words of wrappers around it, such as `srun --nodes 4`.
        words: the program and its arguments.
        environment: variables that are not those with which the script began.
        directory: where it would have run: a folder of the user's, of which the script saw a copy.
        documents: configurations that its words name, by their paths there.
    """

    around: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    documents: Mapping[str, str]

    @property
    def shown(self) -> str:
        """Its beginning, in one line."""
        return one_line(shlex.join(self.words), 2 * LONGEST_SHOWN)


class Outcome(NamedTuple):
    """What came of running a script.

    Attributes:
        command: what was run, in one line.
        starts: the programs that it would have started, in order.
        left_out: commands that were left out, without their arguments.
        absent: those that are not on this machine.
        answered: how many GPUs nvidia-smi was said to see; None if nothing asked.
        status: its exit status; None if it was ended at its limit.
        limit_s: this limit.
        said: the last line of its output.
        changes: what it did to the copy of its folder.
    """

    command: str
    starts: tuple[Start, ...]
    left_out: tuple[str, ...]
    absent: tuple[str, ...]
    answered: int | None
    status: int | None
    limit_s: float
    said: str
    changes: copying.Changes


class Prepared:
    """A script that is ready to run.

    Attributes:
        announcement: what will be done, in one line.
        name: what the script is called, or the program that is run.
    """

    def __init__(self, command: Sequence[str], scratch: Path, gpus: int) -> None:
        self._shown, self._scratch, self._gpus = one_line(shlex.join(command), 2 * LONGEST_SHOWN), scratch, gpus
        here, script = Path.cwd(), script_of(command)
        folder = copying.folder_for(here, script)
        self.name = (script or Path(command[0])).stem
        self._why_not = sandbox.unavailable()
        self._copy = scratch / "copy" / (folder.name or "root")
        self._folder, self._place = folder, self._copy if self._why_not else folder
        self._noted, self._temporary, self._tools = (scratch / name for name in (stand_in.NOTED, "temporary", "tools"))
        for part in (self._copy, self._noted, self._temporary, self._tools):
            part.mkdir(parents=True)
        copying.copy(folder, self._copy)
        starts_in = here if here.is_relative_to(folder) or script is None else script.parent
        self._directory = self._place / starts_in.relative_to(folder)
        self._command = [self._moved(word, folder, here) for word in command]
        batch = script if command[0] != "sbatch" else None
        self._environment = _environment(self._tools, self._temporary, batch)
        if batch is not None:
            stand_in.open_logs(stand_in.directives(_header(batch)), self._copy / starts_in.relative_to(folder))
        places = [self._place, self._temporary, *([] if self._why_not else [Path("/tmp")])]
        told = {"places": [str(one) for one in places], "gpus": gpus, "confined": not self._why_not}
        _write_stand_ins(self._tools, {**told, "noted": str(self._noted)})
        free = f"NOT confined, as {self._why_not}: by absolute paths it can change other files, and it has the network"
        confined = "confined by bubblewrap: all but the copy is read-only, and there is no network"
        self.announcement = (
            f"running {self._shown} in a copy of {one_line(str(folder), 2 * LONGEST_SHOWN)}, "
            f"{free if self._why_not else confined}; what would train is noted and not started"
        )

    def _moved(self, word: str, folder: Path, here: Path) -> str:
        """A path of the command, as it is where the script runs."""
        path = Path(os.path.abspath(here / word))  # noqa: PTH100 (a link stays one)
        stays = not Path(word).is_absolute() and here.is_relative_to(folder)
        return (
            word
            if stays or not path.is_relative_to(folder) or not path.exists()
            else str(self._place / path.relative_to(folder))
        )

    def run(self, limit_s: float = LIMIT_S) -> Outcome:
        """Run it, for at most so long."""
        words = ["sh", "-c", f'ulimit -f {_LARGEST_FILE}; exec "$@"', "sh", *self._command]
        if not self._why_not:
            writable = {self._place: self._copy, **{one: one for one in (self._noted, self._temporary)}}
            readable = [self._tools, *sandbox.interpreter_in(self._place)]
            words = [*sandbox.sandboxed(readable, writable, self._directory), *words]
        before = copying.listed(self._copy)
        directory = self._directory if self._why_not else self._scratch
        status, said = _run(words, self._environment, directory, limit_s)
        noted = _lines(self._noted / stand_in.STARTS)
        return Outcome(
            command=self._shown,
            starts=tuple(self._start(line) for line in noted if line["what"] == "launch"),
            left_out=_names(noted, "left_out"),
            absent=_names(noted, "absent"),
            answered=self._gpus if _names(noted, "asked") else None,
            status=status,
            limit_s=limit_s,
            said=said,
            changes=copying.changes(before, copying.listed(self._copy)),
        )

    def _start(self, line: Mapping[str, Any]) -> Start:
        before, directory = self._environment, Path(line["directory"])
        own = {name: value for name, value in line["environment"].items() if before.get(name) != value}
        own = {name: value for name, value in own.items() if name not in _OF_SHELLS}
        if directory.is_relative_to(self._place):
            directory = self._folder / directory.relative_to(self._place)
        return Start(tuple(line["around"]), tuple(line["words"]), own, str(directory), line["documents"])


@contextmanager
def prepared(command: Sequence[str], gpus: int = GPUS) -> Iterator[Prepared]:
    """A script that is ready to run in the current folder, whose scratch folder is removed in the end.

    Args:
        command: what runs it, such as `bash run.sh 8B 1`.
        gpus: as many as nvidia-smi lists.

    Raises:
        UsageError: this system has no shell, or the folder is too large to copy.
    """
    if sys.platform == "win32":
        raise UsageError("--run: there is no shell here; give the script with --from-megatron, which reads its text")
    with tempfile.TemporaryDirectory(prefix="hybrid_des_", ignore_cleanup_errors=True) as scratch:
        yield Prepared(command, Path(scratch).resolve(), gpus)


def script_of(command: Sequence[str]) -> Path | None:
    """The first word of a command that is the path of a script; None without one."""
    for word in command:
        path = Path(word)
        with suppress(OSError, ValueError):
            if path.is_file() and not _is_compiled(path):
                return path.resolve()
    return None


def _header(script: Path) -> str:
    with script.open(encoding="utf-8", errors="replace") as file:
        return file.read(_HEADER)


def _is_compiled(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_COMPILED)) == _COMPILED


def _environment(tools: Path, temporary: Path, batch: Path | None) -> dict[str, str]:
    """The variables with which a script begins; those of SLURM too, if it has lines for sbatch."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    kept["PATH"] = f"{tools / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
    kept |= {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(temporary), "BASH_ENV": str(tools / "startup.bash")}
    header = "" if batch is None else _header(batch)
    options = stand_in.directives(header)
    if options:
        kept |= stand_in.set_around("sbatch", options, {}) | {stand_in.AROUND: json.dumps(["sbatch", *options])}
    return kept


def _write_stand_ins(tools: Path, told: Mapping[str, Any]) -> None:
    """A program for each name of the table, which runs `stand_in`, and what bash reads before a script."""
    settings: dict[str, Any] = read_catalogue(Path(__file__).with_name("stand_ins.yaml"))
    (tools / stand_in.SETTINGS).write_text(json.dumps({**settings, **told}), encoding="utf-8")
    shutil.copy(stand_in.__file__, tools / "stand_in.py")
    python = getattr(sys, "_base_executable", sys.executable)
    run = shlex.join(["exec", python, "-I", "-S", str(tools / "stand_in.py"), str(tools)])
    (tools / "bin").mkdir()
    names = (*_PYTHONS, *_OTHERS, *settings["trainers"], *settings["wrappers"])
    program = tools / "bin" / "program"
    program.write_text(f'#!/bin/sh\n{run} "${{0##*/}}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    more_names = (settings[kind] for kind in ("left_out", "inside", "ends_at_once"))
    for name in dict.fromkeys(chain(names, *more_names)):
        (tools / "bin" / name).symlink_to(program)
    (tools / "bin" / "activate").touch()  # of an environment, which is sourced by its name
    startup = Path(__file__).with_name("startup.bash").read_text(encoding="utf-8")
    (tools / "startup.bash").write_text(f"__hybrid_des_tools={shlex.quote(str(tools))}\n{startup}", encoding="utf-8")


def _run(
    words: Sequence[str], environment: Mapping[str, str], directory: Path, limit_s: float
) -> tuple[int | None, str]:
    """Run a command in a process group of its own, which ends with it: its status, and the last line it printed."""
    process = subprocess.Popen(
        words, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    last: deque[bytes] = deque(maxlen=_KEPT)
    assert process.stdout is not None
    reading = threading.Thread(target=_read, args=(process.stdout, last), daemon=True)
    reading.start()
    status: int | None = None
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reading.join(_PATIENCE_S)
    if not reading.is_alive():  # else what the script left running holds the pipe
        process.stdout.close()
    lines = b"".join(last).decode(errors="replace").splitlines()
    return status, next((line.strip() for line in reversed(lines) if line.strip()), "")


def _read(stream: IO[bytes], last: deque[bytes]) -> None:
    """Keep the end of an output, however long it is, and however its lines end."""
    while piece := os.read(stream.fileno(), 4096):
        last.append(piece)


def _lines(file: Path) -> list[dict[str, Any]]:
    """What was noted; a line that the script's end cut is missing."""
    lines = []
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def _names(lines: Sequence[Mapping[str, Any]], what: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(" ".join(line["command"]) for line in lines if line["what"] == what))
