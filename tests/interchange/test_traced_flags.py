"""Flags are followed to where a script adds or drops them; what their way hides is named."""

import pytest

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN

SIZES = "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000"
START = "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py"
MAYBE = "if [ -f /etc/fast ]; then ARGS+=' --tensor-model-parallel-size 4'; fi"
MAYBE_ONE = "if [ -f /etc/fast ]; then ARGS+=(--tensor-model-parallel-size 4); fi"


def read(*lines):
    return read_megatron("\n".join(lines), "train.sh")


@pytest.mark.parametrize(
    "lines",
    [
        (MAYBE, f'CMD="{START} $ARGS"', "eval $CMD"),
        (MAYBE, f'start() {{ {START} "$@"; }}', "start $ARGS"),
        (MAYBE, "bash <<END", f"{START} $ARGS", "END"),
        (MAYBE, "set -- $ARGS", f"{START} $@"),
        (MAYBE, "declare -a ALL=($ARGS)", f'{START} "${{ALL[@]}}"'),
        (MAYBE, f'for flags in "$ARGS"; do eval {START} $flags; done'),
    ],
    ids=["eval", "function", "document", "arguments", "declared array", "loop"],
)
def test_undecided_flags_are_asked_for_by_any_way(lines):
    imported = read(f"ARGS='{SIZES} --bf16'", *lines)
    assert imported.values["parallel.tensor"] == UNKNOWN
    assert any(line.startswith("line 2: [ -f /etc/fast ]: --tensor-model-parallel-size 4") for line in imported.unread)


def test_undecided_flags_are_asked_for_through_arrays():
    imported = read(f"ARGS=({SIZES} --bf16)", MAYBE_ONE, f'CMD=({START} "${{ARGS[@]}}")', '"${CMD[@]}"')
    assert imported.values["parallel.tensor"] == UNKNOWN


def test_choices_of_other_commands_are_not_asked_for():
    other = f'OTHER="{SIZES} --bf16"'
    imported = read(f"ARGS='{SIZES}'", MAYBE, 'eval "python evaluate.py $ARGS"', other, f'eval "{START} $OTHER"')
    assert imported.values["parallel.tensor"] == 1


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"torchrun --nnodes 1 --nproc-per-node=8 pretrain_gpt.py $MODEL {SIZES}", "$MODEL"),
        (f"{START} {SIZES} $(cat more.txt)", "$(cat…)"),
        (f"{START} $(python3 flags.py) {SIZES}", "$(python3…)"),
        (f"{START} --mock-data $MODEL {SIZES}", "$MODEL"),
        (f"{START} --mock-data $(cat more.txt) {SIZES}", "$(cat…)"),
        (f"{START} {SIZES} ${{MODEL[@]:2}}", "${MODEL[@]:2}"),
    ],
)
def test_what_may_hold_flags_is_named(line, named):
    imported = read(f"{line} --bf16")
    assert f"{named}: has no value in the script; flags in it are missing" in imported.unread


def test_values_that_a_command_prints_hold_no_flags():
    values = "--master-port $((6000+RANDOM)) --data-path $(cat paths.txt) --save $ROOT/out"
    assert read(f"{START} {SIZES} --bf16 {values}").unread == ()


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ("torchrun --nnodes 1 --nproc-per-node 8 -m pretrain_gpt", ""),
        ("python -m torch.distributed.run --nnodes 1 --nproc-per-node 8 pretrain_gpt.py", ""),
        ("python -m torch.distributed.run --nnodes 1 --nproc-per-node 8 -m tools.serve", "tools.serve"),
        ("srun --nodes 1 --ntasks-per-node 8 python -m tools.serve", "tools.serve"),
    ],
)
def test_modules_are_programs_too(start, named):
    said = [line for line in read(f"{start} {SIZES} --bf16").unread if "read as if it were" in line]
    assert said == ([f"{named}: read as if it were pretrain_gpt.py"] if named else [])


@pytest.mark.parametrize(
    ("change", "recompute", "layers"),
    [
        ('ARGS=("${ARGS[@]/--recompute-activations/}")', "none", 12),
        ('ARGS=("${ARGS[@]/--recompute-*/}")', "none", 12),
        ('ARGS=("${ARGS[@]:0:11}")', "none", 12),
        ('ARGS=("${ARGS[@]/12/24}")', "selective", 24),
        ("unset 'ARGS[11]'", "none", 12),
        ('set -- "${ARGS[@]}"; ARGS=("${@:1:11}")', "none", 12),
    ],
)
def test_arrays_are_changed_as_the_shell_does(change, recompute, layers):
    imported = read(f"ARGS=({SIZES} --bf16 --recompute-activations)", change, f'{START} "${{ARGS[@]}}"')
    assert imported.values["recompute"] == recompute
    assert imported.values["model.layers"] == layers


@pytest.mark.parametrize("lines", [("(", "SIZE=4", ")"), ("echo 4 |", "while true; do SIZE=4; break; done")])
def test_a_shell_of_its_own_keeps_its_variables(lines):
    imported = read("SIZE=2", *lines, f"{START} {SIZES} --bf16 --tensor-model-parallel-size $SIZE")
    assert imported.values["parallel.tensor"] == 2


def test_words_may_be_quoted_as_in_c():
    assert read(f"{START} {SIZES} --bf16 $'--tensor-model-parallel-size' 2").values["parallel.tensor"] == 2


def test_training_a_tokenizer_is_not_training_a_model():
    with pytest.raises(UsageError, match="no flag of Megatron-LM"):
        read("spm_train --input=corpus.txt --vocab_size=5000 --model_type=unigram")
