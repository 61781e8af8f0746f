"""What a batch system says of a job counts: headers of sbatch, manifests of Kubernetes; contradictions are named."""

import pytest
import yaml
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN

SIZES = "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000 --bf16"
ALONE = f"srun python pretrain_gpt.py {SIZES}"
STARTS = f"srun torchrun --nnodes $SLURM_NNODES --nproc-per-node {{}} pretrain_gpt.py {SIZES}"


def gpus(imported):
    return imported.values["cluster.nodes"], imported.values["cluster.gpus_per_node"]


@from_table
def test_gpus_of_a_header_are_counted(header, start, counted):
    started = ALONE if start is None else STARTS.format(start)
    imported = read_megatron(f"#!/bin/bash\n#SBATCH {header}\n{started}\n", "train.sh")
    assert gpus(imported) == tuple(counted)
    assert imported.values["parallel.data"] == counted[0] * counted[1]
    assert not [line for line in imported.assumed if line.startswith("cluster.") and "gpu:" not in line]


@from_table
def test_numbers_that_do_not_agree_are_named(header, start, said):
    started = ALONE if start is None else STARTS.format(start)
    imported = read_megatron(f"#!/bin/bash\n#SBATCH {header}\n{started}\n", "train.sh")
    assert any(said in line for line in (*imported.assumed, *imported.unread))


def test_a_range_of_nodes_is_asked_for():
    imported = read_megatron(f"#SBATCH --nodes=2-4 --gres=gpu:8\n{ALONE}\n", "train.sh")
    assert imported.values["cluster.nodes"] == UNKNOWN
    assert any("--nodes: 2-4: as many nodes as there are" in line for line in imported.unread)


@from_table
def test_the_number_of_ranks_is_that_of_gpus(line, nodes, per_node, said):
    imported = read_megatron(f"{line} {SIZES}", "line")
    machine = [imported.values[f"cluster.{name}"] for name in ("nodes", "gpus_per_node")]
    assert machine == [nodes, per_node] and imported.values["parallel.data"] == nodes * per_node
    assert any(said in assumed for assumed in imported.assumed)


@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "SLURM_NPROCS"])
def test_tasks_of_a_header_are_variables(variable):
    script = f"#SBATCH -N 4 --ntasks-per-node=8\nB=$(({variable} * 2))\n{ALONE} --global-batch-size $B\n"
    assert read_megatron(script, "train.sh").values["batch"] == 64


def pods(replicas, gpus_each, command):
    limits = {"nvidia.com/gpu": gpus_each} if gpus_each else {}
    return {
        "replicas": replicas,
        "template": {"spec": {"containers": [{"name": "a", "command": command, "resources": {"limits": limits}}]}},
    }


LINE = f"torchrun --nnodes=$PET_NNODES --nproc_per_node=8 pretrain_gpt.py {SIZES}"


def manifests():
    """One of each kind, of 4 nodes with 8 GPUs each."""
    shell = ["/bin/bash", "-c", LINE]
    one = {"template": pods(1, 8, shell)["template"], "parallelism": 2}
    jobs = [{"name": "a", "replicas": 2, "template": {"spec": one}}]
    trainer = {
        "numNodes": 4,
        "numProcPerNode": 8,
        "command": shell,
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
    }
    ranks = ["mpirun", "-np", "32", "--npernode", "8", "python", "pretrain_gpt.py", *SIZES.split()]
    words = [word.replace("$PET_NNODES", "$(PET_NNODES)") for word in LINE.split()]
    return {
        "PyTorchJob": {"pytorchReplicaSpecs": {"Master": pods(1, 8, shell), "Worker": pods(3, 8, shell)}},
        "PyTorchJob of words": {"pytorchReplicaSpecs": {"Worker": pods(4, 8, words)}},
        "MPIJob": {"slotsPerWorker": 8, "mpiReplicaSpecs": {"Launcher": pods(1, 0, ranks), "Worker": pods(4, 8, None)}},
        "JobSet": {"replicatedJobs": jobs},
        "TrainJob": {"trainer": trainer},
        "Job": {**pods(1, 8, shell), "parallelism": 4},
        "Job of Volcano": {"tasks": [{"name": "a", **pods(4, 8, shell)}]},
    }


def manifest(kind, spec):
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind.split()[0], "metadata": {"name": "a"}, "spec": spec})


@pytest.mark.parametrize("kind", manifests())
def test_manifests_of_kubernetes_are_read(kind):
    imported = read_megatron(manifest(kind, manifests()[kind]), "job.yaml")
    assert gpus(imported) == (4, 8)
    assert imported.values["parallel.data"] == 32
    assert f"{kind.split()[0]} of 4 pods with 8 GPUs each, each a node" in imported.unread
    assert not [line for line in imported.unread if "has no value" in line]


def test_replicas_stand_in_for_nodes_and_processes():
    line = f"torchrun pretrain_gpt.py {SIZES}"
    spec = {"nprocPerNode": "4", "pytorchReplicaSpecs": {"Worker": pods(2, 8, ["sh", "-c", line])}}
    imported = read_megatron(manifest("PyTorchJob", spec), "job.yaml")
    assert gpus(imported) == (2, 4)
    assert "cluster.gpus_per_node: 4: processes per node, of 8 GPUs that are reserved" in imported.assumed


def test_variables_of_a_container_count():
    spec = {"pytorchReplicaSpecs": {"Worker": pods(2, 8, ["bash", "-c", f"{LINE} --tensor-model-parallel-size $TP"])}}
    container = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "TP", "value": "2"}, {"name": "SECRET", "valueFrom": {}}]
    assert read_megatron(manifest("PyTorchJob", spec), "job.yaml").values["parallel.tensor"] == 2


@pytest.mark.parametrize(("change", "said"), [
    (LINE.replace("$PET_NNODES", "2"), "cluster.nodes: 2: of --nnodes 2, --replicas 3"),
    (LINE.replace("_node=8", "_node=16"), "16: processes per node, more than the 8 GPUs that are reserved"),
])  # fmt: skip
def test_lines_that_contradict_their_manifest_are_named(change, said):
    spec = {"pytorchReplicaSpecs": {"Worker": pods(3, 8, ["bash", "-c", change])}}
    assert any(said in line for line in read_megatron(manifest("PyTorchJob", spec), "job.yaml").assumed)


def test_pods_with_other_numbers_of_gpus_are_named():
    specs = {"Master": pods(1, 4, ["bash", "-c", LINE]), "Worker": pods(3, 8, ["bash", "-c", LINE])}
    imported = read_megatron(manifest("PyTorchJob", {"pytorchReplicaSpecs": specs}), "job.yaml")
    assert "PyTorchJob: pods of 4 and 8 GPUs: the most count" in imported.unread


@pytest.mark.parametrize(("command", "said"), [
    (None, "PyTorchJob of 2 pods with 8 GPUs each, without a command; give its launch line"),
    (["bash", "/work/run.sh", "--size", "8B"], "no flag of Megatron-LM's pretrain_gpt.py"),
])  # fmt: skip
def test_manifests_without_a_line_are_refused(command, said):
    text = manifest("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": pods(2, 8, command)}})
    with pytest.raises(UsageError) as caught:
        read_megatron(text, "job.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["kind: Job\napiVersion: a\nspec: [", "kind: Job\napiVersion: a\n", "kind: 3\napiVersion: 3\nspec: {tasks: 3}\n"],
)
def test_texts_that_are_no_manifests_are_no_lines(text):
    with pytest.raises(UsageError, match="no flag of Megatron-LM"):
        read_megatron(text, "job.yaml")


def test_torchrun_starts_one_node_unless_told_otherwise():
    imported = read_megatron(f"torchrun --nproc-per-node 8 pretrain_gpt.py {SIZES}", "line")
    assert (gpus(imported), imported.values["parallel.data"]) == ((1, 8), 8)
    assert "cluster.nodes: 1: as torchrun starts without --nnodes" in imported.assumed
    several = read_megatron(f"#SBATCH --nodes=4\nsrun torchrun --nproc-per-node 8 x.py {SIZES}", "train.sh")
    assert gpus(several) == (4, 8)
