"""Launch scripts that are run: what they would start is read, and nothing of the user's is lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from hybrid_des.interchange.launched import sandbox, starts
from hybrid_des.scenario.loading import load

SIZES = "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000 --bf16"
RUN = f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SIZES}"
TENSOR = "--tensor-model-parallel-size"
WHY_NOT = sandbox.unavailable()
pytestmark = pytest.mark.slow  # each starts shells and sandboxes
needs_bubblewrap = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
FREE = "bubblewrap is not installed"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, in which the command is given."""
    folder = tmp_path / "job"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(params=[pytest.param(True, marks=needs_bubblewrap), False], ids=["confined", "free"])
def confined(request, monkeypatch):
    """Whether the script is confined."""
    if not request.param:
        monkeypatch.setattr(sandbox, "unavailable", lambda: FREE)
    return request.param


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(sandbox, "unavailable", lambda: FREE)


@pytest.fixture
def launched(run, folder, tmp_path):
    """Run a script: exit code, the scenario or None, lines of stderr."""

    def launched(script, *options, command=("bash", "run.sh")):
        (folder / "run.sh").write_text(script)
        before = contents(folder)
        out = tmp_path / "out"
        (out / "mine.yaml").unlink(missing_ok=True)
        words = ("--set", "cluster.gpu=h100", "--out", out, *options, "--run", "--", *command)
        code, _, said = run("init", "mine", *words)
        assert contents(folder) == before
        return code, load(out / "mine.yaml") if code == 0 else None, said

    return launched


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def tensor(result):
    code, scenario, said = result
    assert code == 0, said
    return scenario.parallel.tensor


def test_what_runs_is_said_before_it_does(launched, confined, capsys, monkeypatch):
    said = []
    monkeypatch.setattr(starts.Prepared, "run", lambda *_: said.append(capsys.readouterr().err) or stop())

    def stop():
        raise KeyboardInterrupt

    launched(RUN, command=("bash", "run.sh", "8B", "1"))
    (line,) = said[0].splitlines()
    assert line.startswith("running bash run.sh 8B 1 in a copy of ")
    how = "confined by bubblewrap" if confined else f"NOT confined, as {FREE}: by absolute paths"
    assert how in line


def test_a_script_that_is_read_is_not_run(run, folder, tmp_path):
    (folder / "run.sh").write_text(f"touch {folder}/ran\n{RUN}\n")
    code, _, _ = run("init", "mine", "--from-megatron", "run.sh", "--out", tmp_path / "out")
    assert code == 0
    assert not (folder / "ran").exists()


def test_a_script_without_end_is_ended(launched, confined):
    code, _, said = launched("while :; do :; done\n", "--limit", "1s")
    assert code == 2
    assert said[1].startswith("bash run.sh: was ended after 1 s (--limit), and started no trainer")


def test_what_was_started_before_the_end_is_read(launched, confined):
    """The limit is much longer than a launch takes to be noted."""
    result = launched(f"{RUN} {TENSOR} 4\nwhile :; do :; done\n", "--limit", "20s")
    assert tensor(result) == 4
    assert any("was ended after 20 s (--limit); what it had started by then is read" in line for line in result[2])


def test_a_script_that_fails_half_way_is_read_until_there(launched, confined):
    result = launched(f"set -e\n{RUN} {TENSOR} 4\necho no data >&2\nfalse\n{RUN} {TENSOR} 8\n")
    assert tensor(result) == 4
    assert any("the script ended with 1 (no data); what it had started by then is read" in one for one in result[2])
    code, _, said = launched(f"set -e\necho no data >&2\nfalse\n{RUN}\n")
    assert (code, len(said)) == (2, 2)
    assert said[1].startswith("bash run.sh: ended with 1 (no data), and started no trainer")


@pytest.mark.parametrize(("script", "why"), [
    ("echo done", "ended with 0 (done), and started no trainer"),
    ("./missing.sh", "ended with 127 (run.sh: line 1: ./missing.sh: No such file or directory), and started no tra"),
    ("python train.py --lr 1", "no flag of Megatron-LM's pretrain_gpt.py, such as --num-layers, in 1 python train.py"),
])  # fmt: skip
def test_a_script_that_starts_no_trainer_is_refused(launched, script, why):
    code, _, said = launched(script)
    assert (code, len(said)) == (2, 2)
    assert said[1].startswith(f"bash run.sh: {why}")


def test_what_a_script_writes_into_its_folder_is_gone(launched, folder, confined):
    (folder / "notes.txt").write_text("mine")
    result = launched(f"mkdir -p ckpt\necho a > ckpt/log\necho b >> notes.txt\n[ -f ckpt/log ] && {RUN} {TENSOR} 4\n")
    assert tensor(result) == 4
    assert any("the script wrote 2 files (" in line and "your files are as they were" in line for line in result[2])


@pytest.mark.parametrize("command", ['rm -rf "$PWD"/* 2> /dev/null', "rm -rf ../job", "find . -type f -delete"])
def test_a_folder_that_its_script_deletes_is_kept(launched, folder, confined, command):
    (folder / "data.txt").write_text("mine")
    result = launched(f"{command}\n{RUN} {TENSOR} 4\n")
    assert tensor(result) == 4
    assert any("deleted 2 files (" in line for line in result[2])


def test_of_two_trainers_one_is_chosen(launched):
    script = f"{RUN} {TENSOR} 2\n{RUN} {TENSOR} 4\npython evaluate.py --seed 1\n"
    result = launched(script)
    assert tensor(result) == 4
    (line,) = (line for line in result[2] if "programs would start" in line)
    assert line.startswith("not understood: 3 programs would start: 1 torchrun --nnodes 2")
    assert line.endswith("3 python evaluate.py --seed 1: 2 is read; --nth chooses another")
    assert tensor(launched(script, "--nth", 1)) == 2
    code, _, said = launched(script, "--nth", 4)
    assert (code, said[1][:48]) == (2, "--nth 4: bash run.sh started 3: 1 torchrun --nno")


@needs_bubblewrap
def test_a_confined_script_changes_nothing_elsewhere(launched, tmp_path, free):
    """Without bubblewrap it does, as the command says."""
    script = f"echo hello > {tmp_path}/elsewhere\n{RUN} {TENSOR} 4\n"
    assert tensor(launched(script)) == 4
    assert (tmp_path / "elsewhere").read_text() == "hello\n"


@needs_bubblewrap
def test_a_confined_script_has_the_folders_it_makes(launched):
    script = f"set -e\nmkdir -p /none/logs $HOME/hybrid_des_test\n{RUN} {TENSOR} 4 > /none/logs/x\n"
    result = launched(script)
    assert tensor(result) == 4
    assert not Path("/none").exists()
    assert not Path("~/hybrid_des_test").expanduser().exists()


@needs_bubblewrap
@pytest.mark.parametrize("place", ["{home}", "{elsewhere}"])
def test_a_confined_script_cannot_write_elsewhere(launched, place):
    path = place.format(home="$HOME/hybrid_des_test", elsewhere="/usr/hybrid_des_test")
    code, _, said = launched(f"set -e\necho hello > {path}\n{RUN}\n")
    assert code == 2
    assert "Read-only file system), and started no trainer" in said[1]


CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)"


def test_a_confined_script_has_no_network(launched, confined):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = launched(f'set -e\n{RUN} {TENSOR} 2\npython3 -c "{CONNECT}" {port}\n{RUN} {TENSOR} 4\n')
    assert tensor(result) == (2 if confined else 4)
    assert any("the script ended with 1 (" in line for line in result[2]) == confined


def test_files_elsewhere_are_not_removed(launched, tmp_path, free):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights").write_text("mine")
    result = launched(f"rm -rf {tmp_path}/data\nmv {tmp_path}/data x\nmkdir -p out {tmp_path}/new\n{RUN} {TENSOR} 4\n")
    assert tensor(result) == 4
    assert (tmp_path / "data" / "weights").read_text() == "mine"
    assert not (tmp_path / "new").exists()
    assert any(line.startswith("note: left out, as if done: rm ") for line in result[2])


def test_processes_of_others_are_not_killed(launched, free):
    with subprocess.Popen(["sleep", "600"]) as other:
        script = f"kill -9 {other.pid}\npkill -9 sleep\necho {other.pid} | xargs kill -9\n{RUN} {TENSOR} 4\n"
        assert tensor(launched(script)) == 4
        assert other.poll() is None
        other.kill()


def test_what_a_script_leaves_running_is_ended(launched, tmp_path, free):
    result = launched(f"tail -f /dev/null &\necho $! > {tmp_path}/pid\n{RUN} {TENSOR} 4\n")
    assert tensor(result) == 4
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not is_running(pid):
            break
        sleep(0.05)
    else:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("it runs on")


def test_an_interrupted_script_is_ended_and_its_copy_removed(folder, tmp_path):
    (folder / "run.sh").write_text("torchrun x.py\ntail -f /dev/null\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "hybrid_des", "init", "mine", "--run", "--", "bash", "run.sh"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE) as process:
        for _ in range(600):
            if [*temporary.glob("*/noted/starts")]:
                break
            sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.decode().splitlines()[1:] == ["interrupted"]
    assert [*temporary.iterdir()] == []
    assert not (folder / "mine.yaml").exists()


def is_running(pid):
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")


def test_no_gpu_of_this_machine_is_seen(launched, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    monkeypatch.setenv("TP", "4")
    script = f'[ -z "$CUDA_VISIBLE_DEVICES$NVIDIA_VISIBLE_DEVICES" ] && {RUN} {TENSOR} $TP\n'
    assert tensor(launched(script)) == 4


@pytest.mark.parametrize("asked", [
    "nvidia-smi --query-gpu=name --format=csv,noheader | wc -l", "nvidia-smi -L | wc -l",
    "python -c 'import torch; print(torch.cuda.device_count())'",
])  # fmt: skip
def test_gpus_are_as_many_as_are_stated(launched, asked):
    script = f"nvidia-smi\nN=$({asked})\n{RUN.replace('per-node 8', 'per-node $N')}\n"
    code, scenario, said = launched(script)
    assert (code, scenario.cluster.gpus_per_node) == (0, 8)
    assert any("the script was told of 8 GPUs per node; state others with --set" in line for line in said)
    _, scenario, _ = launched(script, "--set", "cluster.gpus_per_node=4")
    assert (scenario.cluster.gpus_per_node, scenario.parallel.data) == (4, 8)


FLAGS = f"{SIZES} {TENSOR} 4"
FORMS = [
    f"set -eu\nsource /none/env.sh\n. ~/none && {RUN} {TENSOR} 4",
    f"/opt/conda/bin/torchrun --nnodes 2 --nproc-per-node 8 p.py {FLAGS} 2>&1 | tee log",
    f'PYTHON="$PWD/bin/python"\n"$PYTHON" -u p.py {FLAGS} --nnodes 2 --nproc-per-node 8 --save "a b"',
    f'set -- 4 x\nV=$PWD\nfor X in $(cat /dev/null; echo 1); do $V/bin/torchrun p.py {SIZES} {TENSOR} "$1"; done',
    f"set -e\nmkdir -p /none/logs\n{RUN} {TENSOR} 4 > log 2>&1",
    f'source ./model.sh\nA=($MODEL)\ncase $1 in 8B) T=$((2 * $2));; esac\n{RUN} "${{A[@]}}" {TENSOR} ${{T}}',
    f'T=$(python3 -c "print(2 + 2)")\n{RUN} {TENSOR} $T',
    f"T=$(echo tp_4 | sed s/tp_//)\nexec {RUN} {TENSOR} $T",
    f"nohup {RUN} {TENSOR} 4 > log 2>&1 &\nwait",
    f"srun -l -N 2 --ntasks-per-node=8 --container-image x bash -c 'python3 -u p.py {FLAGS} --rank $SLURM_PROCID'",
    f"mpirun -np 16 --npernode 8 --allow-run-as-root -mca btl ^openib -x PATH python p.py {FLAGS}",
    f"nsys profile -o out -t cuda,nvtx --capture-range=cudaProfilerApi {RUN} {TENSOR} 4",
    f"numactl --membind=0 {RUN} {TENSOR} 4",
    f"uv run --with x {RUN} {TENSOR} 4",
    f"ray start --head\nray job submit --address=http://x:1 -- {RUN} {TENSOR} 4",
    f"docker run --rm -it -v /data:/data image:1 bash -c 'cd /workspace && {RUN} {TENSOR} 4'",
    f"for R in 0 1; do ssh node$R 'cd /workspace; {RUN} {TENSOR} 4 --node-rank '$R; done",
    f"accelerate launch --num_machines 2 --num_processes 8 p.py {FLAGS}",
    f"some-trainer-of-ours sft --nnodes 2 --nproc-per-node 8 {FLAGS}",
    f"sudo -E /opt/conda/bin/python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 p.py {FLAGS}",
    f"PATH=$PWD/bin:$PATH\ntorchrun --nnodes 2 --nproc-per-node 8 p.py {FLAGS}",
    f"set -e\nsource activate x\nconda activate x\npip install x\nmodule load cuda\nibstat\ncd /none\n{RUN} {TENSOR} 4",
    f"(\n{RUN} {TENSOR} 4 2>&1 | tee log\n)",
    f'A=4 B="$PWD" /opt/conda/bin/torchrun p.py {SIZES} {TENSOR} "$((2 * $2))"',
    f"[[ tp_4 =~ tp_(.) ]]\nT=${{BASH_REMATCH[1]}}\n{RUN} {TENSOR} $T",
    f"if [ ! -d /no/such/data ]; then {RUN} {TENSOR} 4; else {RUN} {TENSOR} 8; fi",
    f'run() {{ local t=$1; shift; {RUN} {TENSOR} $t "$@"; }}\nrun 4 --lr 1e-4',
]


@pytest.mark.parametrize("script", FORMS)
def test_any_shell_is_read_as_the_shell_reads_it(launched, folder, script):
    (folder / "model.sh").write_text("MODEL='--swiglu'\n")
    (folder / "bin").mkdir()
    for name in ("torchrun", "python"):
        (folder / "bin" / name).write_text("#!/bin/sh\ntouch started\n")
        (folder / "bin" / name).chmod(0o755)
    result = launched(f"{script}\n", command=("bash", "run.sh", "8B", "2"))
    assert tensor(result) == 4
    assert not any("started" in line for line in result[2] if line.startswith("note: "))


SLURM = f"""\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=8
#SBATCH --gres=gpu:8
HOSTS=($(scontrol show hostnames $SLURM_JOB_NODELIST))
srun python p.py {SIZES} {TENSOR} $((2 * ${{#HOSTS[@]}})) --world-size $SLURM_NTASKS --master ${{HOSTS[1]}}
"""


@pytest.mark.parametrize("command", ["bash run.sh", "sbatch run.sh", "bash submit.sh"])
def test_batch_scripts_have_the_variables_of_their_job(launched, folder, command):
    (folder / "submit.sh").write_text("ID=$(sbatch --parsable -J x run.sh)\n[ $ID = 1 ]\n")
    code, scenario, said = launched(SLURM, command=command.split())
    assert (code, scenario.cluster.nodes, scenario.cluster.gpus_per_node) == (0, 2, 8), said
    assert (scenario.parallel.tensor, scenario.parallel.data) == (4, 4)
    assert not any("ended with" in line for line in said)


def test_scripts_start_in_the_folder_of_the_user(launched, folder, tmp_path, monkeypatch, confined):
    """A repository is copied whole; a script of another folder starts in its own."""
    (folder / ".git").mkdir()
    (folder / "common.sh").write_text(f"T=4\nSIZES='{SIZES}'\n")
    (folder / "examples").mkdir()
    script = f'source "$(dirname "$0")/../common.sh"\n{RUN} {TENSOR} $T\n'
    (folder / "examples" / "deep.sh").write_text(script)
    assert tensor(launched("", command=("bash", "examples/deep.sh"))) == 4
    monkeypatch.chdir(folder / "examples")
    assert tensor(launched("", command=("bash", "deep.sh"))) == 4
    monkeypatch.chdir(tmp_path)
    assert tensor(launched("", command=("bash", f"{folder}/examples/deep.sh"))) == 4


@pytest.mark.parametrize(("words", "why"), [
    (["--run"], "expected --run and, after --, what runs the script"),
    (["--", "bash", "run.sh"], "expected --run and, after --, what runs the script"),
    (["--run", "--"], "expected --run and, after --, what runs the script"),
    (["--from-megatron", "x", "--run", "--", "bash"], "and --run"),
    (["--nth", "2", "--from-megatron", "x"], "--nth needs --run"),
])  # fmt: skip
def test_a_wrong_command_is_refused_in_one_line(refused, words, why):
    assert why in refused("init", "mine", *words)


def test_the_configuration_of_deepspeed_that_a_launch_names_is_read(launched, folder):
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4}')
    code, scenario, said = launched(
        f"cp ds.json made.json\n{RUN} --deepspeed --deepspeed_config=made.json --global-batch-size 64\n"
    )
    assert code == 0, said
    assert (scenario.sharding, scenario.schedule.microbatch_size) == ("zero-1", 4)
    assert not any("deepspeed-config" in line for line in said)


@pytest.mark.parametrize("command", [("bash", "run.sh"), ("sbatch", "run.sh")])
def test_the_log_of_a_batch_job_can_be_moved(launched, command):
    header = "#SBATCH --job-name=big\n#SBATCH --nodes=2\n#SBATCH --output logs/%x-%j.out\n"
    script = f"#!/bin/bash\n{header}set -e\nmv logs/big-1.out logs/old.out\n{RUN}\n"
    code, scenario, said = launched(script, command=command)
    assert (code, scenario and scenario.cluster.nodes) == (0, 2), said


def test_a_job_of_torchtitan_counts_what_its_script_adds(launched, folder):
    (folder / "job.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
        "[parallelism]\ntensor_parallel_degree = 4\n"
    )
    line = 'torchrun --nproc_per_node=${NGPU:-8} -m torchtitan.train --job.config_file ${CONFIG:-"./job.toml"} "$@"\n'
    command = ("bash", "run.sh", "--training.seq_len", "4096")
    code, scenario, said = launched(line, "--set", "cluster.nodes=2", command=command)
    assert code == 0, said
    assert (scenario.parallel.tensor, scenario.parallel.data) == (4, 4)
    assert (scenario.model.options.sequence, scenario.schedule.microbatch_size) == (4096, 2)


def test_megatron_with_a_configuration_is_no_other_program(launched, folder):
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    code, scenario, said = launched(f"{RUN} {TENSOR} 2 --deepspeed --deepspeed_config ds.json\n")
    assert code == 0, said
    assert (scenario.parallel.tensor, scenario.sharding) == (2, "zero-2")


def test_a_configuration_that_is_not_there_is_named(launched):
    code, _, said = launched("torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file missing.toml\n")
    assert code == 2
    assert len([line for line in said if "no flag of Megatron-LM" in line and "missing.toml" in line]) == 1


STAGE_3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
TRAINER = "--deepspeed ds.json --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2"


def test_what_deepspeed_starts_has_the_gpus_of_its_launcher(launched, folder):
    (folder / "ds.json").write_text(STAGE_3)
    code, scenario, said = launched(f"deepspeed --num_gpus 4 --num_nodes 2 train.py {TRAINER}\n")
    assert code == 0, said
    assert (scenario.cluster.nodes, scenario.cluster.gpus_per_node, scenario.parallel.data) == (2, 4, 8)
    assert (scenario.sharding, scenario.schedule.microbatch_size) == ("zero-3", 2)
    assert not any("ds.json" in line or "how many GPUs" in line for line in said)


def test_which_of_two_jobs_is_read_is_said(launched, folder):
    (folder / "ds.json").write_text(STAGE_3)
    job = f"deepspeed --num_gpus 4 --num_nodes 1 train.py {TRAINER}\n"
    code, scenario, said = launched(f"{job}{job.replace('num_gpus 4', 'num_gpus 8')}false\n")
    assert code == 0, said
    assert scenario.cluster.gpus_per_node == 8
    assert any("2 programs would start" in line and "--nth" in line for line in said)
    assert any("the script ended with 1" in line for line in said)
    _, scenario, _ = launched(f"{job}{RUN}\n")  # Megatron-LM's, where there is one
    assert scenario.model.options.layers == 12


def test_what_a_batch_script_says_in_the_end_is_shown(launched):
    code, _, said = launched("#!/bin/bash\necho no image in reach\nexit 1\n", command=("sbatch", "run.sh"))
    assert code == 2 and any("no image in reach" in line for line in said)


RECIPES = Path(__file__).parents[1] / "interchange" / "jobs" / "recipes"


@pytest.mark.parametrize("line", [
    "torchrun --nnodes 2 --nproc-per-node 8 -m torchtitan.train --module models.tiny --config large",
    "cd deeper && python ../job.py",
])  # fmt: skip
def test_recipes_that_a_launch_names_are_found(launched, folder, line, confined):
    shutil.copytree(RECIPES, folder, dirs_exist_ok=True)
    (folder / "deeper").mkdir()
    (folder / "job.py").write_text("from nemo import pretrain_recipe\n\njob = pretrain_recipe(nodes=2)\n")
    code, scenario, said = launched(f"{line}\n")
    assert code == 0, said
    assert (scenario.parallel.ranks, scenario.parallel.tensor) == (16, 8 if "large" in line else 2)


def test_arguments_of_a_trainer_count_beside_accelerate(launched, folder):
    (folder / "zero3.yaml").write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}\n"
    )
    (folder / "sft.yaml").write_text(
        "model_name_or_path: mistralai/Mistral-7B-v0.1\nmax_seq_length: 2048\nper_device_train_batch_size: 4\n"
    )
    launch = "accelerate launch --config_file zero3.yaml --num_machines 2 --num_processes 16 sft.py --config sft.yaml"
    code, scenario, said = launched(f"#!/bin/bash\n#SBATCH --gres=gpu:8\nsrun {launch}\n")
    assert code == 0, said
    assert (scenario.sharding, scenario.parallel.data, scenario.cluster.nodes) == ("zero-3", 16, 2)
    assert (scenario.model.options.sequence, scenario.schedule.microbatch_size) == (2048, 4)
    assert not any("not understood" in line for line in said)
