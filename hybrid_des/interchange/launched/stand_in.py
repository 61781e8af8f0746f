"""What runs in place of a program of `stand_ins.yaml`: it notes its arguments, environment and folder, and ends with 0.

Each of these programs is a file of its name, in a folder in front of PATH, that runs this one: alone, without the rest
of this package, by whichever Python runs it. Wrappers such as srun start the program behind their options, which is
noted with theirs in front of it. What a script asks of a machine is answered: names of nodes, a list of GPUs.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

NOTED, STARTS, SETTINGS = "noted", "starts", "settings.json"
MOST_NOTED = 16 * 2**20  # bytes, where a script starts programs for ever
MOST_OF_A_DOCUMENT = 64 * 2**10  # bytes of a configuration
ABSENT = "absent"  # name: the program is the first of the arguments, and is not on this machine
AROUND = "HYBRID_DES_AROUND"  # variable: the words of wrappers around, as JSON
_CONFIGURATIONS = (".json", ".yaml", ".yml", ".toml")
_DIRECTIVE = re.compile(r"(?m)^\s*#SBATCH[ \t]+(.*)$")
_INTERPRETER = re.compile(r"python[0-9.]*")
_COUNT, _IMPORT = "torch.cuda.device_count()", re.compile(r"\bimport torch\b(?![.,\w])")
_VALUED = ("-W", "-X", "-Q", "--check-hash-based-pycs")  # options of Python with a value
_NODES, _TASKS = ("-N", "--nodes"), ("-n", "--ntasks", "-np", "--np")
_PER_NODE, _GPUS = ("--ntasks-per-node", "--npernode", "-ppn"), ("--gpus-per-node", "--gres", "--gpus-per-task")


def main(folder: str, name: str, words: Sequence[str]) -> int:
    """Stand in for a program.

    Args:
        folder: where its settings are, and the file of what is noted.
        name: of the program.
        words: its arguments.
    """
    return StandIn(Path(folder), name, words).run()


class StandIn:
    """One start of a program.

    Attributes:
        name: of the program.
        words: its arguments.
    """

    def __init__(self, folder: Path, name: str, words: Sequence[str]) -> None:
        self._folder = folder
        self._settings: Mapping[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.name, self.words = (name, [*words]) if name != ABSENT else (words[0], [*words[1:]])
        self._is_absent = name == ABSENT
        self._around: list[str] = json.loads(os.environ.get(AROUND, "[]"))

    def run(self) -> int:
        """Act as the table says; its exit status."""
        if self._is_absent:
            return self._note("launch" if any(word.startswith("--") for word in self.words) else "absent")
        answers: Mapping[str, Callable[[], int]] = {
            "sbatch": self._sbatch, "scontrol": self._scontrol, "nvidia-smi": self._nvidia_smi, "git": self._git,
            "accelerate": lambda: self._only("launch"), "cd": lambda: self._note("absent"),
            "source": lambda: self._note("absent"),
        }  # fmt: skip
        if self.name in answers:
            return answers[self.name]()
        if _INTERPRETER.fullmatch(self.name):
            return self._python()
        if self.name in self._settings["wrappers"]:
            return self._wrap(self._settings["wrappers"][self.name])
        if self.name in self._settings["inside"]:
            return self._inside()
        if self.name in self._settings["ends_at_once"]:
            return 0
        return self._note("left_out" if self.name in self._settings["left_out"] else "launch")

    def _note(self, what: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name != AROUND}
        by_path = self.name in self._settings["inside"]  # no more of the arguments, which may hold a token
        line: dict[str, Any] = {"what": what, "command": [self.name, *(self.words[-1:] if by_path else self.words[:1])]}
        if what == "launch":
            line |= {"around": self._around, "words": [self.name, *self.words]}
            line |= {"directory": _here(), "environment": environment, "documents": self._documents()}
        with (Path(self._settings["noted"]) / STARTS).open("ab", buffering=0) as file:
            if file.tell() < MOST_NOTED:
                file.write(json.dumps(line).encode() + b"\n")
        return 0

    def _documents(self) -> dict[str, str]:
        """The texts of configurations among the words, such as that of --deepspeed_config, by how they are named."""
        paths = (word.rpartition("=")[2] for word in self.words if word.endswith(_CONFIGURATIONS))
        files = ((path, Path(path)) for path in paths)
        return {
            path: file.read_text(errors="replace")
            for path, file in files
            if file.is_file() and file.stat().st_size <= MOST_OF_A_DOCUMENT
        }

    def _only(self, command: str) -> int:
        return self._note("launch" if self.words[:1] == [command] else "left_out")

    def _folders(self) -> list[str]:
        """Where programs are looked for, without the stand-ins."""
        own = str(self._folder / "bin")
        return [one for one in os.environ.get("PATH", os.defpath).split(os.pathsep) if one != own]

    def _found(self, *names: str) -> str:
        """The path of the program itself, or of the first of others that is there."""
        programs = (shutil.which(name, path=os.pathsep.join(self._folders())) for name in names)
        program = next((one for one in programs if one), None)
        if program is None:
            self._note("absent")
            raise SystemExit(0)
        return program

    def _real(self, *names: str) -> NoReturn:
        """Become the program itself, or the first of others that is there."""
        program = self._found(*(names or (self.name,)))
        environment = {name: value for name, value in os.environ.items() if name != "BASH_ENV"}
        os.execve(program, [program, *self.words], environment | {"PATH": os.pathsep.join(self._folders())})

    def _git(self) -> int:
        is_left_out = bool({*self.words} & {*self._settings["git_leaves_out"]})
        return self._note("left_out") if is_left_out else self._real()

    def _inside(self) -> int:
        """Act on the copy, and where nothing of the user's can be reached; `name` is a program that changes files."""
        outside = [word for word in self.words if not word.startswith("-") and not self._is_inside(word)]
        if not outside:
            return self._real()
        if self._settings["confined"]:
            acted = subprocess.run([self._found(self.name), *self.words], capture_output=True, check=False)
            return acted.returncode and self._note("left_out")
        self._note("left_out")
        inside = [word for word in self.words if word not in outside]
        if all(word.startswith("-") for word in inside) or self.name in self._settings["all_inside"]:
            return 0
        self.words = inside
        return self._real()

    def _is_inside(self, word: str) -> bool:
        path = os.path.realpath(Path(_here(), word)) if _here() else ""
        return any(path == place or path.startswith(f"{place}/") for place in self._settings["places"])

    def _python(self) -> int:
        at = 0
        while at < len(self.words) and self.words[at].startswith("-") and self.words[at] != "-":
            option = self.words[at]
            if option == "-m" and at + 1 < len(self.words):
                return self._module(self.words[at + 1])
            if option == "-c" and at + 1 < len(self.words):
                self.words[at + 1] = self._told(self.words[at + 1])
            if option.startswith("-c") or option in ("-V", "-VV", "--version", "-h", "--help"):
                return self._real(self.name, "python3", "python")
            at += 2 if option in _VALUED else 1
        if at == len(self.words) or self.words[at] in ("-", "/dev/stdin"):
            return self._real(self.name, "python3", "python")
        return self._note("launch")

    def _told(self, code: str) -> str:
        """A text of Python with the number of GPUs in it, in place of PyTorch's, which may not be here."""
        if _COUNT not in code and not re.search(r"\btorch\.", code):
            return _IMPORT.sub("pass", code)
        if _COUNT in code:
            self._note("asked")
            return self._told(code.replace(_COUNT, str(self._settings["gpus"])))
        return code

    def _module(self, module: str) -> int:
        if module in self._settings["python_runs"]:
            return self._real(self.name, "python3", "python")
        return self._note("left_out" if module in self._settings["python_leaves_out"] else "launch")

    def _wrap(self, spec: Mapping[str, Any]) -> int:
        """Start what a program wraps, with its own words noted in front."""
        words = self.words
        if after := [one.split() for one in spec.get("after", ())]:
            begins = next((one for one in after if words[: len(one)] == one), None)
            if begins is None:
                return self._note("left_out")
            words = words[len(begins) :]
        options, inner = divided(words, spec)
        if spec.get("joined") and inner:
            inner = ["bash", "-c", " ".join(inner)]
        if not inner:
            return self._note("left_out")
        around = [*self.words[: len(self.words) - len(words)], *options]
        return self._start(around, inner)

    def _start(self, options: Sequence[str], inner: Sequence[str]) -> int:
        environment = self._within(options)
        name = Path(inner[0]).name
        try:
            if not (self._folder / "bin" / name).exists():
                os.execvpe(inner[0], [*inner], environment)
        except OSError:  # it is not on this machine
            pass
        os.environ.update(environment)
        return StandIn(self._folder, name, inner[1:]).run()

    def _within(self, options: Sequence[str]) -> dict[str, str]:
        around = json.dumps([*self._around, self.name, *options])
        return {**os.environ, **set_around(self.name, options, os.environ), AROUND: around}

    def _sbatch(self) -> int:
        """Run a batch script, with the options of its `#SBATCH` lines, as the one node that runs it would."""
        wrap = value_of(self.words, ("--wrap",))
        options, inner = divided(self.words, {"switches": ["parsable", "W", "wait", "exclusive", "H", "Q", "requeue"]})
        if wrap is not None:
            text, inner = wrap, []
        else:
            text = Path(inner[0]).read_text(errors="replace") if inner else sys.stdin.read()
        script = Path(self._settings["noted"]) / f"batch_{os.getpid()}.sh"
        if not inner:
            script.write_text(text)
        run = [*(inner or [str(script)])]
        options = [*directives(text), *(one for one in options if not one.startswith("--wrap"))]
        environment = self._within(options)
        open_logs(options, Path.cwd())
        _answer("1" if "--parsable" in self.words else "Submitted batch job 1")
        sys.stdout.flush()  # in front of what the script says
        subprocess.run(["bash", *run], env=environment, stdout=sys.stderr, check=False)
        return 0

    def _scontrol(self) -> int:
        """Answer `scontrol show hostnames LIST`."""
        if self.words[:2] == ["show", "hostnames"] or self.words[:2] == ["show", "hostname"]:
            listed = self.words[2] if len(self.words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
            for node in nodes_in(listed):
                _answer(node)
        return 0

    def _nvidia_smi(self) -> int:
        """List GPUs: as many as the settings have."""
        query = next((word for word in self.words if word.startswith("--query-gpu")), None)
        listed = {"-L", "--list-gpus"} & {*self.words}
        if query is None and not listed:
            return 0
        self._note("asked")
        names = query.partition("=")[2].split(",") if query else []
        if query and not any("noheader" in word for word in self.words):
            _answer(", ".join(names))
        for index in range(self._settings["gpus"]):
            facts = {"index": index, "name": "GPU", "gpu_name": "GPU", "count": self._settings["gpus"]}
            fields = (str(facts.get(name.strip(), "[N/A]")) for name in names)
            _answer(", ".join(fields) if query else f"GPU {index}: GPU (UUID: GPU-{index})")
        return 0


def _here() -> str:
    """The current folder; empty where the script has deleted it."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def divided(words: Sequence[str], spec: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The options of a wrapper, with the words that it skips, and the command that it starts."""
    switches, two, skip = {*map(str, spec.get("switches", ()))}, spec.get("two", ()), spec.get("skip", 0)
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return [*words[:at]], [*words[at + 1 :]]
        if word.startswith("-") and len(word) > 1:
            name = word.lstrip("-")
            attached = "=" in word or (not word.startswith("--") and len(name) > 1 and name[1:].isdigit())
            bundle = not word.startswith("--") and {*name} <= switches
            at += 1 if attached or bundle or name in switches else 3 if name in two else 2
        elif re.match(r"[A-Za-z_]\w*=", word):  # sudo A=1 program
            at += 1
        elif skip:
            at, skip = at + 1, skip - 1
        else:
            break
    return [*words[:at]], [*words[at:]]


def directives(text: str) -> list[str]:
    """The options of a batch script's `#SBATCH` lines."""
    words: list[str] = []
    for line in _DIRECTIVE.findall(text):
        try:
            words += shlex.split(line, comments=True)
        except ValueError:  # a quotation that does not end
            words += line.split()
    return words


def open_logs(options: Sequence[str], directory: Path) -> None:
    """Create the files that sbatch opens for a job's output, which scripts move and link (man page of sbatch)."""
    patterns = (value_of(options, names) for names in (("-o", "--output"), ("-e", "--error")))
    named = value_of(options, ("-J", "--job-name")) or "job"
    for pattern in patterns:
        path = Path((pattern or "%").replace("%j", "1").replace("%A", "1").replace("%x", named))
        if "%" not in path.name and not path.is_absolute() and ".." not in path.parts:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).touch()


def value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the last of some options; None without one."""
    given = None
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and (equals or at + 1 < len(words)):
            given = value if equals else words[at + 1]
        elif short := next((one for one in names if len(one) == 2 and re.fullmatch(rf"{one}\d+", word)), None):
            given = word[len(short) :]
    return given


def set_around(name: str, options: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a wrapper sets for what it starts: those of SLURM (man page of srun), or of Open MPI."""
    nodes, tasks = _number(value_of(options, _NODES)), _number(value_of(options, _TASKS))
    per_node, gpus = _number(value_of(options, _PER_NODE)), _last_number(value_of(options, _GPUS))
    if name.startswith("mpi"):
        sizes: dict[str, object] = {"OMPI_COMM_WORLD_SIZE": tasks, "OMPI_COMM_WORLD_LOCAL_SIZE": per_node}
        ranks: dict[str, object] = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_LOCAL_RANK": 0}
    elif name in ("sbatch", "srun", "salloc"):
        nodes = nodes or _number(environment.get("SLURM_NNODES")) or 1
        per_node = per_node or _number(environment.get("SLURM_NTASKS_PER_NODE"))
        tasks = tasks or nodes * (per_node or 1)
        listed = "node0" if nodes == 1 else f"node[0-{nodes - 1}]"
        sizes = {
            "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
            "SLURM_NTASKS_PER_NODE": per_node, "SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus,
            "SLURM_CPUS_PER_TASK": _number(value_of(options, ("-c", "--cpus-per-task"))),
        }  # fmt: skip
        ranks = {
            "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_NODEID": 0, "SLURM_JOB_ID": 1, "SLURM_JOBID": 1,
            "SLURM_JOB_NODELIST": listed, "SLURM_NODELIST": listed, "SLURMD_NODENAME": "node0",
            "SLURM_SUBMIT_DIR": _here(), "SLURM_JOB_NAME": value_of(options, ("-J", "--job-name")) or "job",
        }  # fmt: skip
        ranks = {key: environment.get(key, value) if name == "srun" else value for key, value in ranks.items()}
    else:
        return {}
    return {key: str(value) for key, value in {**ranks, **sizes}.items() if value is not None}


def _number(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def _last_number(text: str | None) -> int | None:
    """Of h100:8 and gpu:8, the 8."""
    numbers = re.findall(r"(?:^|:)(\d+)", text or "")
    return int(numbers[-1]) if numbers else None


def nodes_in(listed: str) -> Iterator[str]:
    """The names in a list of SLURM, such as node[0-3]."""
    for name, numbers in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?", listed):
        if not numbers:
            yield name
            continue
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{name}{number:0{len(first)}}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
