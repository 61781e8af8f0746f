"""Scenario files over their base, and overrides from the command line."""

from fractions import Fraction

import pytest
from support.scenarios import MINIMAL

from hybrid_des import load
from hybrid_des.errors import ScenarioError, one_line


def test_overrides_take_the_place_of_what_the_file_says(write):
    file = write(MINIMAL + "parallel: {pipeline: 2}\n")
    scenario = load(
        file,
        [
            "schedule.kind=gpipe",
            "parallel.pipeline=4",
            "parallel.pipeline=8",
            "workload.forward=[1, 2, 3, 4, 5, 6, 7, 8 ms]",
            "workload.forward.0=50 ms",
            "cluster.nvlink={bandwidth: inf}",
            "description=a=b",
        ],
    )
    assert (scenario.schedule.kind, scenario.parallel.pipeline, scenario.description) == ("gpipe", 8, "a=b")
    assert scenario.workload.forward == (Fraction(1, 20), 2, 3, 4, 5, 6, 7, Fraction(8, 1000))
    assert scenario.cluster.nvlink.bandwidth is None


def test_null_removes_an_inherited_key(write):
    schedule = "schedule: {kind: interleaved-1f1b, microbatches: 4, chunks: 2}\nparallel: {pipeline: 2}\n"
    base = write(schedule + "workload: {forward: 1 s, backward: 1 s}\n", "base.yaml")
    plain_1f1b = ["schedule.chunks=null", "schedule.kind=1f1b"]
    assert load(base, plain_1f1b).schedule.chunks == 1
    assert load(base, [*plain_1f1b, "workload.memory.activation=~"]).workload.memory.activation == 0
    modelled = load(base, ["workload=null", "model=gpt2"])
    assert (modelled.workload, modelled.model.base) == (None, "gpt2")
    above = write("base: base.yaml\nschedule: {kind: 1f1b, chunks: null}\nworkload: null\nmodel: gpt2\n", "above.yaml")
    assert (load(above).schedule.chunks, load(above).workload) == (1, None)


def test_null_removes_no_key_that_is_required_or_unknown(problems):
    (line,) = problems(MINIMAL, "workload.forward=null")
    assert line == "--set workload.forward=null: workload.forward: is required"
    (line,) = problems(MINIMAL, "schedule.chnks=null")
    assert line.endswith('schedule.chnks: unknown "chnks"; did you mean "chunks"?')
    (line,) = problems(MINIMAL, "schedule.chunks=")
    assert line.endswith("schedule.chunks: expected a whole number, found nothing")


def test_a_size_of_a_named_model_is_overridden(write):
    file = write("model: gpt2\nschedule: {kind: 1f1b, microbatches: 4}\n")
    model = load(file, ["model.layers=6"]).model
    assert (model.base, model.options.layers, model.options.hidden) == ("gpt2", 6, 768)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("schedule.kind", "--set schedule.kind: expected a path and a value, such as parallel.pipeline=8"),
        ("=3", "--set =3: expected a path and a value, such as parallel.pipeline=8"),
        ("a..b=3", "--set a..b=3: expected a path and a value, such as parallel.pipeline=8"),
        ("parallel.pipeline=0", "--set parallel.pipeline=0: parallel.pipeline: must be at least 1, not 0"),
        ("paralel.pipeline=4", '--set paralel.pipeline=4: paralel: unknown "paralel"; did you mean "parallel"?'),
        ("parallel.pipelin=4", '--set parallel.pipelin=4: parallel.pipelin: unknown "pipelin"; did you mean'),
        ("schedule.kind.x=1", '--set schedule.kind.x=1: schedule.kind is "1f1b"; it has no "x"'),
        ("workload.memory=[1", "--set workload.memory=[1: not valid YAML"),
        ("workload.memory={a: 1, a: 2}", "a: given twice"),
        ("workload.forward=", "workload.forward: expected a time such as 50 ms, found nothing"),
        ("a." * 2000 + "a=1", "a path of 2001 keys; at most 32"),
        ('schedule.file="a\\0b"', "schedule.file: a path cannot contain a null character"),
        ("a\udcff=1", "an unpaired surrogate is not a valid character"),
        ("[=50 ms", 'unknown "["'),
        ("steps=&a 1", "YAML anchors and aliases are not supported"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_written(problems, override, said):
    (line,) = problems(MINIMAL, override)
    assert said in line
    assert one_line(override.split("=")[0], 100).removesuffix("…") in line


def test_an_override_beyond_a_list_is_refused(problems):
    text = MINIMAL.replace("1 s", "[1]")
    for step in ("1", "-1", "x"):
        (line,) = problems(text, f"workload.forward.{step}=1")
        assert f'workload.forward is a list of 1; it has no "{step}"' in line


def test_wrong_overrides_are_all_told(problems):
    assert len(problems(MINIMAL, "steps", "x", "schedule.kind.x=1")) == 3
    assert len(problems(MINIMAL, "steps=0", "seed=-1")) == 2


def test_a_file_gives_only_what_differs_from_its_base(write, problems):
    write(MINIMAL + "name: below\nparallel: {pipeline: 2, data: 3}\nsteps: 0\n", "below.yaml")
    scenario = load(write("base: below.yaml\nparallel: {data: 4}\nsteps: 2\n", "above.yaml"))
    assert (scenario.name, scenario.parallel.pipeline, scenario.parallel.data) == ("above", 2, 4)
    assert scenario.steps == 2
    (line,) = problems("base: below.yaml\nparallel:\n  data: 4\n")
    assert line.endswith("below.yaml:5: steps: must be at least 1, not 0")
    assert problems("base: below.yaml\nsteps: 1\nparallel:\n  data: 0\n") == [
        "4: parallel.data: must be at least 1, not 0"
    ]


def test_a_base_that_cannot_be_read_is_named(write, problems, tmp_path):
    assert problems("base: none.yaml\n") == [f"1: base: {tmp_path / 'none.yaml'}: no such file"]
    assert problems("base: a.yaml\n") == ['1: base: "a.yaml" is based on this file itself']
    assert problems("base: 3\n") == ["1: base: expected the path of a file, found 3"]
    write("base: a.yaml\n", "b.yaml")
    (line,) = problems("base: b.yaml\n")
    assert "is based on this file itself" in line


def test_bases_end_somewhere(write):
    write(MINIMAL, "0.yaml")
    for number in range(1, 41):
        write(f"base: {number - 1}.yaml\n", f"{number}.yaml")
    assert load(write("base: 31.yaml\n")).schedule.microbatches == 4
    with pytest.raises(ScenarioError, match=r"/9\.yaml:1: base: more than 32 files, one based on the other"):
        load(write("base: 40.yaml\n", "41.yaml"))


@pytest.mark.parametrize("name", ["a\\0b", "loop.yaml", "x" * 5000])
def test_a_base_that_no_file_can_be_is_one_line(write, name):
    file = write(f'base: "{name}"\n')
    (file.parent / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(ScenarioError) as error:
        load(file)
    (line,) = error.value.problems
    assert line.startswith(f"{file}:1: base: ")
    assert len(line) <= 400
    assert line.isprintable()


def test_a_text_instead_of_a_scenario_is_not_printed_whole(write):
    with pytest.raises(ScenarioError) as error:
        load(write("root:x:0:0:root:/root:/bin/bash secret\n" * 100))
    assert len(error.value.problems[0]) < 200 + len(str(write("")))


def test_paths_of_overrides_start_where_the_user_stands(write, tmp_path, monkeypatch):
    """In the current folder or, where there is no such file, beside the scenario."""
    (tmp_path / "here").mkdir()
    file = write(MINIMAL, "a.yaml")
    write("bytes,time_us\n1024,10\n", "beside.csv")
    write("bytes,time_us\n1024,20\n", "both.csv")
    write("bytes,time_us\n1024,30\n", "here/both.csv")
    monkeypatch.chdir(tmp_path / "here")
    for name, time in (("both.csv", 30), ("beside.csv", 10), (tmp_path / "both.csv", 20)):
        scenario = load(file, ["parallel.data=2", "cluster.gpus_per_node=2", f"gradients.table={name}"])
        assert scenario.gradients.options.table.time(1024) == time * 10**6, name


def test_commas_join_overrides_as_advice_does(write):
    file = write(MINIMAL)
    joined = load(file, ["schedule.kind=zb-h1,schedule.chunks=1, gradients.bucket=25 MB"])
    assert (joined.schedule.kind, joined.gradients.bucket) == ("zb-h1", 25 * 10**6)
    assert load(file, ["parallel.order=[pipeline, data, tensor]"]).parallel.order == ("pipeline", "data", "tensor")
    assert load(file, ['description="one, steps=2"']).steps == 1
    with pytest.raises(ScenarioError, match=r"--set schedule\.chunk=2: "):
        load(file, ["schedule.kind=zb-h1,schedule.chunk=2"])
