"""What a script is copied into before it runs, and how stand-ins divide the words of wrappers."""

import pytest
import yaml
from support.paths import PACKAGE

from hybrid_des.errors import UsageError
from hybrid_des.interchange.launched import copying, stand_in

TABLE = yaml.safe_load((PACKAGE / "interchange" / "launched" / "stand_ins.yaml").read_text())
WRAPPED = {
    "srun": [
        "-N 2 -n16", "--nodes=2 --ntasks-per-node 8 -l", "-lu -p gpu --kill-on-bad-exit=1 --container-image a/b:c",
        "-N2 --mpi pmix --exclusive", "--export ALL --pty",
    ],
    "mpirun": [
        "-np 8 -H a:4,b:4 -x PATH -mca btl ^openib --allow-run-as-root", "--mca a b --bind-to none --tag-output",
    ],
    "mpiexec": ["-n 8 -ppn 4 -genv A 1 -l"],
    "nsys": ["-t cuda,nvtx -o out --force-overwrite true", "--trace=cuda -s none -w true"],
    "docker": ["--gpus all --rm -it -v /a:/b --network host image:tag", "-d --name x --shm-size=8g image"],
    "apptainer": ["--nv -B /a:/b image.sif"],
    "uv": ["--no-sync --with torch --extra x", "--python 3.12 --"],
    "numactl": ["--cpunodebind=0 --membind=0", "-N 0 -m 0"],
    "taskset": ["-c 0-7"],
    "sudo": ["-E A=1 B=2", "-u someone"],
    "ray": ["--address http://x:1 --no-wait --"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "options"), [(name, options) for name, several in WRAPPED.items() for options in several]
)
def test_a_wrapper_is_divided_from_what_it_starts(program, options):
    command = ["python", "train.py", "--lr", "1", "--", "-x"]
    words = [*options.split(), *command]
    before, inner = stand_in.divided(words, TABLE["wrappers"][program])
    assert inner == command
    assert before == [word for word in options.split() if word != "--"]


def test_every_stand_in_has_one_part():
    kinds = ("trainers", "wrappers", "left_out", "inside", "ends_at_once")
    names = [name for kind in kinds for name in TABLE[kind]]
    assert {name for name in names if names.count(name) > 1} == set()
    assert {*TABLE["all_inside"]} <= {*TABLE["inside"]}


def test_directives_are_words():
    text = '#!/bin/bash\n#SBATCH -N 4 # nodes\n #SBATCH --job-name="a b"\n##SBATCH -n 3\necho\n#SBATCH --x="\n'
    assert stand_in.directives(text) == ["-N", "4", "--job-name=a b", '--x="']


@pytest.mark.parametrize(("options", "expected"), [
    ("-N 2 --ntasks-per-node=8 --gres=gpu:h100:4", {"NNODES": "2", "NTASKS": "16", "GPUS_ON_NODE": "4"}),
    ("--nodes=3 -n 6", {"NNODES": "3", "NTASKS": "6", "JOB_NODELIST": "node[0-2]"}),
    ("--gpus-per-node=8 -c 12", {"NNODES": "1", "NTASKS": "1", "GPUS_PER_NODE": "8", "CPUS_PER_TASK": "12"}),
])  # fmt: skip
def test_variables_of_slurm_follow_from_its_options(options, expected):
    found = stand_in.set_around("sbatch", options.split(), {})
    assert {name: found[f"SLURM_{name}"] for name in expected} == expected


def test_lists_of_nodes_are_expanded():
    assert [*stand_in.nodes_in("node[0-2,7],login,gpu[08-10]")] == [
        "node0", "node1", "node2", "node7", "login", "gpu08", "gpu09", "gpu10",
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder with a bit of everything, and a place for its copy."""
    folder, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    for one in (folder / "src" / "deep", folder / ".git" / "objects" / "ab", folder / "venv" / "bin", elsewhere):
        one.mkdir(parents=True)
    (folder / "run.sh").write_text("echo\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "src" / "deep" / "model.sh").write_text("A=1\n")
    (folder / "weights").write_bytes(b"x" * (copying.LARGEST + 1))
    (folder / ".git" / "HEAD").write_text("ref\n")
    (folder / ".git" / "objects" / "ab" / "cd").write_text("blob\n")
    (folder / "venv" / "pyvenv.cfg").touch()
    (folder / "venv" / "lib").mkdir()
    (folder / "venv" / "bin" / "activate").touch()
    (elsewhere / "settings.sh").write_text("B=2\n")
    (folder / "inner").symlink_to(folder / "src")
    (folder / "settings.sh").symlink_to(elsewhere / "settings.sh")
    (folder / "data").symlink_to(elsewhere)
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    return folder


def test_a_copy_has_what_scripts_read(folder, tmp_path):
    to = tmp_path / "copy"
    to.mkdir()
    copying.copy(folder, to)
    assert (to / "run.sh").stat().st_mode & 0o111
    assert (to / "src" / "deep" / "model.sh").read_text() == "A=1\n"
    assert (to / ".git" / "HEAD").exists() and not [*(to / ".git" / "objects").iterdir()]
    assert (to / "venv" / "bin" / "activate").exists() and not (to / "venv" / "lib").exists()
    assert (to / "weights").stat().st_size == copying.LARGEST + 1
    assert (to / "weights").read_bytes()[:1] == b"\0"


def test_a_copy_leads_nowhere_else(folder, tmp_path):
    to = tmp_path / "copy"
    to.mkdir()
    copying.copy(folder, to)
    for path in to.rglob("*"):
        assert path.resolve().is_relative_to(to)
    assert (to / "inner" / "deep" / "model.sh").read_text() == "A=1\n"
    assert (to / "settings.sh").read_text() == "B=2\n" and not (to / "settings.sh").is_symlink()
    assert [*(to / "data").iterdir()] == []
    assert not (to / "broken").exists()


def test_changes_of_a_copy_are_found(folder):
    before = copying.listed(folder)
    (folder / "run.sh").unlink()
    (folder / "new").touch()
    (folder / "src" / "deep" / "model.sh").write_text("A=12\n")
    written, deleted = copying.changes(before, copying.listed(folder))
    assert ({*written}, deleted) == ({"new", "src/deep/model.sh"}, ("run.sh",))


def test_the_folder_of_a_script_is_its_repository(folder, tmp_path, monkeypatch):
    script = folder / "src" / "run.sh"
    assert copying.folder_for(folder / "src", script) == folder
    (folder / ".git" / "HEAD").rename(folder / "HEAD")
    (folder / ".git").rename(folder / "git")
    assert copying.folder_for(folder / "src", script) == folder / "src"
    assert copying.folder_for(folder, script) == folder
    assert copying.folder_for(tmp_path / "elsewhere", script) == folder / "src"
    assert copying.folder_for(folder, None) == folder
    monkeypatch.setattr(copying, "MOST", 4)
    assert copying.folder_for(folder, script) == folder / "src"
    monkeypatch.setattr(copying, "MOST_BYTES", 2)
    with pytest.raises(UsageError, match=r"job/src: more than 4 files, or 0 MiB in small ones: too much to copy"):
        copying.folder_for(folder, script)
