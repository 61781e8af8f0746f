"""Launch scripts are read as the shell would run them; what is not read is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, scenario_file

SIZES = "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000"
RUN = f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SIZES} --bf16"


def read(script):
    return read_megatron(script, "train.sh")


def said(script):
    """All that a script's reading says, in one text."""
    imported = read(script)
    return "\n".join((*imported.assumed, *imported.unread))


def tensor(script):
    return read(script).values["parallel.tensor"]


def test_flags_of_branches_not_taken_are_left_out():
    script = f"""\
SIZE=small
if [ $SIZE = small ]; then MODEL="{SIZES}"
else MODEL="--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --num-experts 64"
fi
if [[ "$SIZE" == large ]]; then P="--bf16 --fp8-format hybrid"; else P="--bf16"; fi
torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py $MODEL $P
"""
    imported = read(script)
    assert imported.values["model.layers"] == 12
    assert "model.experts" not in imported.values
    assert imported.values["precision"] == "bf16"
    assert imported.unread == ()


def test_branches_that_cannot_be_decided_are_asked_for():
    script = f"""\
ARGS="--tensor-model-parallel-size 2"
if [ -f /etc/fast ]; then ARGS="$ARGS --fp8-format hybrid"; fi
{RUN} $ARGS
"""
    imported = read(script)
    assert imported.values["precision"] == UNKNOWN
    assert imported.values["parallel.tensor"] == 2
    (line,) = [line for line in imported.unread if "--fp8-format hybrid" in line]
    assert line.startswith("line 2: [ -f /etc/fast ]")
    assert "state precision with --set" in line
    assert scenario_file("x", imported, ["precision=fp8", "cluster.gpu=h100"])[1] == []


def test_each_condition_is_asked_for_what_it_changes():
    script = f"""\
[ -f /a ] && A="--fp8-format hybrid"
if [ -f /b ]; then B="--sequence-parallel"; fi
{RUN} --tensor-model-parallel-size 2 $A $B
"""
    lines = [line for line in read(script).unread if "with --set" in line]
    assert [line.partition("; state ")[2] for line in lines] == [
        "precision with --set", "parallel.sequence with --set",
    ]  # fmt: skip


def test_a_choice_that_nothing_uses_is_not_asked_for():
    script = f'if [ -f /x ]; then OTHER="--fp8-format hybrid"; fi\n{RUN}\n'
    assert read(script).values["precision"] == "bf16"


def test_values_that_stand_only_in_branches_are_asked_for():
    script = f"if [ -d /data ]; then TP=2; else TP=4; fi\n{RUN} --tensor-model-parallel-size $TP\n"
    assert tensor(script) == UNKNOWN
    assert r"--tensor-model-parallel-size: $TP has no value in the script, but under line 1: [ -d /data ]: 2" in said(
        script
    )


def test_conditions_on_what_is_not_set_are_said():
    script = f'if [ "$FP8" = 1 ]; then ARGS="--fp8-format hybrid"; fi\n{RUN} $ARGS\n'
    assert read(script).values["precision"] == "bf16"
    assert 'line 1: [ "$FP8" = 1 ]: $FP8 not set in the script, taken as unset; left out: ARGS=--fp8' in said(script)


def test_arguments_beyond_nine_are_not_the_first():
    """`$13` is `$1` with a 3: a size that is not known was 3, and more than 1."""
    script = f'TP=${{13}}\nif [ $TP -gt 1 ]; then E="--sequence-parallel"; fi\n{RUN} {TENSOR} $TP $E\n'
    assert read(script).values["parallel.sequence"] == UNKNOWN
    assert f"{TENSOR}: ${{13}} has no value in the script" in said(script)


def test_comments_end_before_lines_are_joined():
    script = f"""\
#   --some-old-flag \\
export CMD="pretrain_gpt.py --tensor-model-parallel-size 4 {SIZES}"
torchrun --nnodes 2 --nproc-per-node 8 $CMD
"""
    assert tensor(script) == 4


def test_flags_after_a_comment_are_not_passed_on():
    """A comment in a continued command ends it; in an array it does not."""
    script = f"{RUN} \\\n  --tensor-model-parallel-size 2 \\\n  # --sequence-parallel \\\n  --context-parallel-size 2\n"
    imported = read(script)
    assert (imported.values["parallel.tensor"], imported.values["parallel.context"]) == (2, 1)
    assert imported.values["parallel.sequence"] is False
    assert any(line.startswith("line 4: --context-parallel-size 2: begins a command") for line in imported.unread)
    array = f"A=(--tensor-model-parallel-size 2 # one\n  --context-parallel-size 2)\n{RUN} ${{A[@]}}\n"
    assert read(array).values["parallel.context"] == 2


def test_sourced_files_are_read(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "model.sh").write_text(f'MODEL_ARGS=({SIZES})\nif [ -f /x ]; then A="--swiglu"; fi\n')
    script = 'HERE="$(cd "$(dirname "$0")" && pwd)"\nsource $HERE/conf/model.sh\ntorchrun p.py ${MODEL_ARGS[@]} $A\n'
    file = tmp_path / "train.sh"
    file.write_text(script)
    imported = read_megatron(script, str(file), is_file=True)
    assert imported.values["model.layers"] == 12
    assert any(line.startswith("model.sh line 2: [ -f /x ]") for line in imported.unread)


@pytest.mark.parametrize("command", ["source ./model.sh", ". $HOME/model.sh"])
def test_sourced_files_that_are_not_there_are_said(tmp_path, command):
    script = f"{command}\n{RUN}\n"
    for name, is_file in ((str(tmp_path / "train.sh"), True), ("--from-megatron", False)):
        lines = read_megatron(script, name, is_file=is_file).unread
        assert any(line.startswith("line 1: source ") and "not read" in line for line in lines)


@pytest.mark.parametrize("text", [
    "model:\n  name: some/model\ntraining:\n  tensor_parallel: 8\n", "bash other.sh --fast\n",
    "python train.py --learning-rate 1e-4\n", "#!/bin/bash\nsource model.sh\n", "--nnodes 2 --nproc-per-node 8",
])  # fmt: skip
def test_texts_without_a_flag_of_the_framework_are_refused(text):
    with pytest.raises(UsageError, match=r"no flag of Megatron-LM's pretrain_gpt.py"):
        read(text)


@pytest.mark.parametrize("flag", ["--data-parallel-size 4", "--profile-later", "--checkpoint-layers-too 4"])
def test_flags_with_an_effect_are_named(flag):
    imported = read(f"{RUN} {flag}")
    name = flag.split()[0]
    assert any(line.startswith(name) for line in imported.unread) == (name != "--profile-later")
    assert any(line.startswith(name) for line in imported.idle) == (name == "--profile-later")


@pytest.mark.parametrize("flags", ["--lr 1e-4", "--mscale 1", "--attention-dropout 0.1", "--wandb-mode offline"])
def test_flags_without_an_effect_are_told_apart(flags):
    imported = read(f"{RUN} {flags}")
    assert (imported.unread, imported.idle) == ((), (flags,))


def test_gates_and_positions_of_other_flags_are_read():
    gated = read(f"{RUN} --quick-geglu --use-rotary-position-embeddings").values
    assert (gated["model.mlp"], gated["model.ffn"], gated["model.positions"]) == ("swiglu", 4096, "rotary")
    assert read(RUN).values["model.mlp"] == "gelu"


def test_experts_have_the_default_width():
    experts = read(f"{RUN} --num-experts 8 --disable-bias-linear").values["model.experts"]
    assert experts == {"count": 8, "active": 2, "ffn": 4096}


@pytest.mark.parametrize("flag", [
    "--hybrid-override-pattern M-D*", "--linear-attention-freq 4", "--moe-num-experts 64",
    "--n-shared-experts 2", "--multi-head-latent-attention",
])  # fmt: skip
def test_flags_that_make_other_layers_are_refused(flag):
    with pytest.raises(UsageError, match=flag.split()[0]):
        read(f"{RUN} {flag}")


GPUS = f"srun python launch.py pretrain_gpt.py {SIZES} --bf16"


@pytest.mark.parametrize("held", ["--gres=gpu:8", "--gres=gpu:h100:8", "--gpus-per-node=8", "--gpus-per-node=a100:8"])
@pytest.mark.parametrize("start", [GPUS, f"srun torchrun --nproc_per_node gpu x.py {SIZES}"])
def test_gpus_of_a_node_are_those_reserved(held, start):
    script = f"#SBATCH -N 4 --ntasks-per-node=1 {held}   # nodes\n{start}\n"
    imported = read(script)
    assert (imported.values["cluster.nodes"], imported.values["cluster.gpus_per_node"]) == (4, 8)
    assert imported.values["parallel.data"] == 32
    assert not any("gres" in line or "gpus-per-node" in line for line in imported.unread)


def test_processes_that_leave_gpus_idle_are_said():
    script = f"#SBATCH --nodes=2 --gres=gpu:8 --ntasks-per-node=4\n{GPUS}\n"
    assert read(script).values["cluster.gpus_per_node"] == 4
    assert "4: processes per node, of 8 GPUs" in said(script)


TENSOR = "--tensor-model-parallel-size"
FORMS = [
    f"run() {{ local tp=$1; {RUN} {TENSOR} $tp; }}\nrun 4",
    f"A=({RUN})\nA+=({TENSOR} 4)\n${{A[@]}}",
    f"case $((2 + 2)) in 2|3) T=1;; 4) T=4;; *) T=8;; esac\n{RUN} {TENSOR} $T",
    f"declare -A T=([small]=2 [large]=4)\n{RUN} {TENSOR} ${{T[large]}}",
    f"set -- 8B 4\n{RUN} {TENSOR} $2",
    f"T=${{TP:-${{SIZE:-4}}}}; {RUN} {TENSOR} $T",
    f'CMD="{RUN} {TENSOR} 4"; eval "$CMD"',
    f"T=3; ((T++))\n{RUN} {TENSOR} $T",
    f"sbatch <<EOF\n#!/bin/bash\n{RUN} {TENSOR} 4\nEOF",
    f"T=2\nlet T*=2\n{RUN} {TENSOR} $T",
    f"[ 1 -lt 2 ] && T=4 || T=2\n{RUN} {TENSOR} $T",
    f"S=tp4_pp2; {RUN} {TENSOR} ${{S:2:1}}",
    f'srun bash -c "cd /x; {RUN} {TENSOR} 4 2>&1 | tee log"',
    f"T=`expr 2 \\* 2`\n{RUN} {TENSOR} $T",
    f"while [[ $# -gt 0 ]]; do case $1 in --tp) T=$2;; esac; shift; done\nT=${{T:-4}}\n{RUN} {TENSOR} $T",
    f'if ! [ "${{X}}" ]; then T=4; fi\n{RUN} {TENSOR} $T',
    f"T=4 P=2\n{RUN} {TENSOR} $T",
    f"T=2\nD=$A/$B/c T=4\n{RUN} --save $D/$B.pt {TENSOR} $T",
    f"[ 1 -gt -1 ] && T=4\n{RUN} 2>&1 {TENSOR} $T | tee log",
    f"A=({RUN} {TENSOR} 4 --bad 1); unset 'A[-1]' A[99]; ${{A[@]}}",
    f"DATA=<path of the data>\n{RUN} --data-path $DATA {TENSOR} 4",
]


@pytest.mark.parametrize("script", FORMS)
def test_forms_of_the_shell_are_read(script):
    assert tensor(script) == 4


DAMAGED = [
    (f"if true; then\n{RUN} {TENSOR} 4\n", "line 3: the end of a block or a list is missing"),
    (f"{RUN} {TENSOR} 4 --layout (a b\n", "line 1: the end of a block or a list is missing"),
    (f"{RUN} {TENSOR} 4\nfi ) x\n", "line 2: not understood as shell near `)`"),
]


@pytest.mark.parametrize(("script", "note"), DAMAGED)
def test_what_is_no_shell_is_said(script, note):
    assert note in said(script)


def test_a_loop_is_read_with_its_last_word():
    script = f"for TP in 1 2 4; do {RUN} --tensor-model-parallel-size $TP; done\n"
    assert tensor(script) == 4
    assert "line 1: for TP in 1 2 4: read with the last of them" in said(script)


def test_of_several_programs_the_last_is_read():
    script = f"{RUN} --tensor-model-parallel-size 2\n{RUN} --tensor-model-parallel-size 4\npython prepare.py --seed 1\n"
    assert tensor(script) == 4
    assert "lines 1, 2 start programs with such flags: line 2 is read" in said(script)


def test_programs_in_undecided_branches_are_asked_for():
    script = f"if [ -d /ckpt ]; then {RUN} --load /ckpt; else {RUN} --tensor-model-parallel-size 4; fi\n"
    assert tensor(script) == UNKNOWN
    assert "line 1: else of [ -d /ckpt ]: not decided; line 1, which it starts, is read" in said(script)
    assert (
        "line 1: [ -d /ckpt ]: --load /ckpt without --tensor-model-parallel-size: not decided; state parallel.t"
        in said(script)
    )


def test_dropout_that_no_flag_turns_off_is_said():
    line = "model.mlp: swiglu: without dropout, which Megatron-LM has at 0.1 unless flags say 0"
    assert line in read(f"{RUN} --swiglu --hidden-dropout 0").assumed
    assert line not in read(f"{RUN} --swiglu --hidden-dropout 0 --attention-dropout 0.0").assumed
    assert line not in read(RUN).assumed


def test_other_programs_and_scripts_are_named():
    assert "pretrain_bert.py: read as if it were pretrain_gpt.py" in said(f"torchrun pretrain_bert.py {SIZES}")
    assert "starts next.sh, another script, which is not read" in said(f"{RUN}\nbash next.sh\n")


def test_variables_without_a_value_are_named():
    script = f"torchrun $LAUNCH_ARGS pretrain_gpt.py {SIZES} --bf16 $EXTRA_ARGS --lr $LR $@\n"
    lines = read(script).unread
    for variable in ("$LAUNCH_ARGS", "$EXTRA_ARGS", "$@"):
        assert f"{variable}: has no value in the script; flags in it are missing" in lines
    assert not any("$LR" in line for line in lines)


def test_fragments_that_start_nothing_are_said():
    assert "nothing in it starts a program" in said(f"MODEL_ARGS=({SIZES})\n")
    assert tensor(f"{SIZES}\n--tensor-model-parallel-size 4\n--bf16") == 4


def test_defaults_that_are_assigned_where_they_are_used_count():
    """`: "${X:=4}"`, as in scripts for several clusters, gives X its value from there on."""
    script = f': "${{TP:=4}}"\n: ${{PP:=2}}\n{RUN} --tensor-model-parallel-size $TP'
    script += " --pipeline-model-parallel-size ${PP}"
    values = read(script).values
    assert (values["parallel.tensor"], values["parallel.pipeline"]) == (4, 2)
    assert tensor(f': "${{TP:-4}}"\n{RUN} --tensor-model-parallel-size ${{TP:=2}}') == 2


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("", "precision: bf16: without --bf16 and --fp16, Megatron-LM trains in fp32"),
        ("--bf16", "batch: 32: one micro-batch per replica, as in Megatron-LM without --global-batch-size"),
        ("--bf16 --global-batch-size 64", "schedule.microbatch_size: 1: there is no --micro-batch-size"),
        (
            "--bf16 --num-experts 8 --expert-model-parallel-size 8",
            "experts.dispatcher: all-to-all: Megatron-LM's own default, allgather, is not described",
        ),
    ],
)
def test_what_a_line_does_not_say_is_said(flags, line):
    micro = "" if "--global" in flags else "--micro-batch-size 2"
    script = f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SIZES} {micro} {flags}"
    assert line in read(script).assumed
    full = f"{script} --fp16 --micro-batch-size 2 --global-batch-size 64 --moe-token-dispatcher-type alltoall"
    assert not any(one.startswith(("precision", "batch", "schedule", "experts")) for one in read(full).assumed)


def test_programs_that_are_no_python_file_are_named():
    assert "megatron sft: read as if it were pretrain_gpt.py" in said(f"NPROC_PER_NODE=8 megatron sft {SIZES} --bf16")
    assert "read as if" not in said(f"srun -N 2 torchrun {SIZES} --bf16")


def test_switches_may_have_a_word():
    on, off = (f"{RUN} --tensor-model-parallel-size 2 --sequence_parallel {word}" for word in ("true", "False"))
    assert read(on).values["parallel.sequence"] is True
    assert read(off).values["parallel.sequence"] is False
    assert not any("--tp-comm-overlap" in line for line in read(f"{off} --tp_comm_overlap false").refused)


def test_flags_that_need_another_are_named_without_it():
    """Of a model that the line only names, as those of wrappers of Megatron-LM do."""
    line = "megatron sft --model x --pipeline_model_parallel_size 2 --decoder_last_pipeline_num_layers 13 --bf16"
    lines = said(f"{line} --moe_token_dispatcher_type flex --num_layers_per_virtual_pipeline_stage 2")
    for flag in ("--decoder-last-pipeline-num-layers", "--num-layers-per-virtual-pipeline-stage"):
        assert f"parallel.stages: even, one per rank: {flag} counts from --num-layers, which is missing" in lines
    assert "--moe-token-dispatcher-type flex" in lines
    for flag in ("--max-seqlen-per-dp-cp-rank 4096", "--num-query-groups 4", "--kv-lora-rank 512"):
        assert flag in read(f"{RUN} {flag}").unread


def test_positions_that_are_learned_are_as_many_as_tokens():
    line = "model.sequence: 2048: as many learned positions, of --max-position-embeddings 8192"
    assert line in read(f"{RUN} --max-position-embeddings 8192").assumed
    rotary = read(f"{RUN} --max-position-embeddings 8192 --position-embedding-type rope --no-position-embedding")
    assert line not in rotary.assumed and "--no-position-embedding" not in rotary.unread
    assert "--no-position-embedding" in said(f"{RUN} --no-position-embedding")


def test_attention_of_megatron_deepspeed_is_told():
    line = "model.attention: flash: Megatron-DeepSpeed needs --use-flash-attn for it"
    assert line in read(f"{RUN} --deepspeed").assumed
    assert line not in read(f"{RUN} --deepspeed --use-flash-attn").assumed + read(RUN).assumed
    older = "model.attention: flash: releases without --attention-backend need --use-flash-attn for it"
    assert older in read(RUN).assumed
    for asked in ("--use-flash-attn", "--attention-backend flash"):
        assert older not in read(f"{RUN} {asked}").assumed


def test_names_of_norms_may_be_small():
    """As Megatron-DeepSpeed writes them."""
    assert read(f"{RUN} --normalization rmsnorm").values["model.norm"] == "rms"


def test_ranks_of_mpirun_are_counted():
    values = read(f"mpirun -np 64 --npernode 8 -x PATH python pretrain_gpt.py {SIZES} --bf16").values
    assert (values["cluster.nodes"], values["cluster.gpus_per_node"], values["parallel.data"]) == (8, 8, 64)
    unknown = read(f"mpirun -np $RANKS --npernode 8 python pretrain_gpt.py {SIZES} --bf16")
    assert any(line.startswith("parallel.data: 1: --nnodes") for line in unknown.assumed)


def test_programs_of_one_function_are_counted():
    script = f'run() {{\n  {RUN} "$@"\n}}\nrun --tensor-model-parallel-size 2\nrun --tensor-model-parallel-size 4\n'
    assert tensor(script) == 4
    assert "line 2 starts 2 programs with such flags: the last is read" in read(script).unread


def test_flags_of_eight_bits_are_no_layers():
    """Those of Lumen, which begin as those of linear attention do."""
    assert "--linear-fp8-scaling delayed" in read(f"{RUN} --linear-fp8-scaling delayed").unread


def test_two_numbers_of_nodes_are_said():
    assumed = read(f"#SBATCH --nodes=4\n{RUN}").assumed
    assert "cluster.nodes: 2: of --nnodes 2, --nodes 4" in assumed


PIECES = st.sampled_from([
    "if", "then", "else", "fi", "for", "x", "in", "do", "done", "case", "esac", ";;", "(", ")", "((", "))", "[[", "]]",
    "[", "]", "{", "}", "$(", "${", "$((", "`", "'", '"', "\\", "\n", " ", "&&", "||", "|", "<<E", "E", "#", "$X",
    "A=(", "A=1", "--num-layers 4", "--tensor-model-parallel-size", "$1", "${A[@]}", "${A:-", "function", "f()", "f",
    "source", "eval", "!",
])  # fmt: skip


@given(st.lists(PIECES, max_size=24))
def test_no_text_ends_in_a_traceback(pieces):
    for glue in (" ", ""):
        try:
            read(f"--num-layers 4 {glue.join(pieces)}")
        except UsageError as error:
            assert "\n" not in str(error)


def test_what_is_nested_too_deeply_is_not_read():
    for text in ("( " * 500, "${A:-" * 3000 + "}" * 3000, "$(echo " * 2000 + ")" * 2000):
        try:
            assert read(f"--num-layers {text}").values["model.layers"] == UNKNOWN
        except UsageError as error:
            assert "nested too deeply" in str(error)
