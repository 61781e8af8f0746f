"""Recipes in Python, and what programs print: each value is the scenario's, and what cannot be told is said."""

from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.interchange.jobs import read_job
from hybrid_des.interchange.recipes import Undecided, built_by

JOBS = Path(__file__).with_name("jobs")
EXPECTED = yaml.safe_load((JOBS / "recipes.yaml").read_text(encoding="utf-8"))


def built(folder, text, call="recipe"):
    """What a function of a module builds."""
    file = folder / "module.py"
    file.write_text(text, encoding="utf-8")
    return built_by(file, call, lambda values: True).values


@pytest.mark.parametrize("file", EXPECTED)
def test_the_plan_is_that_of_the_recipe(file):
    wanted = EXPECTED[file]
    imported = read_job([JOBS / file], fixed=wanted.get("fixed"))
    assert {path: imported.values.get(path) for path in wanted["values"]} == wanted["values"]
    assert [*imported.unread] == wanted.get("not_understood", [])
    assert {*wanted.get("assumed", [])} <= {*imported.assumed}


@from_table
def test_a_statement_is_worth_what_python_makes_of_it(tmp_path, body, value):
    text = f"import unknown\n\ndef recipe(given=4):\n    cfg = unknown.Config()\n    {body}\n    return cfg\n"
    assert built(tmp_path, text.replace("; ", "\n    "))["x"] == value


@from_table
def test_what_depends_on_something_unknown_is_undecided(tmp_path, body):
    text = f"import unknown\n\ndef recipe():\n    cfg = unknown.Config(x=1)\n    {body}\n    return cfg\n"
    value = built(tmp_path, text.replace("; ", "\n    "))["x"]
    assert isinstance(value, Undecided) and "unknown" in value


@pytest.mark.slow
@from_table
def test_a_recipe_that_grows_without_end_ends(tmp_path, body):
    text = f"import unknown\n\ndef recipe(n=1):\n    cfg = unknown.Config()\n    {body}\n    return cfg\n"
    with suppress(UsageError):
        built(tmp_path, text.replace("; ", "\n    "))


@from_table
def test_a_recipe_is_refused_in_one_line(tmp_path, text, call, said):
    with pytest.raises(UsageError) as error:
        built(tmp_path, text, call)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_constant_of_a_missing_module_is_asked_for(tmp_path):
    job = (JOBS / "recipes" / "nemo.py").read_text().replace("seq_length=8192", "seq_length=nl.LENGTH")
    (tmp_path / "job.py").write_text(job)
    imported = read_job([tmp_path / "job.py"])
    assert imported.values["model.sequence"] == "UNKNOWN"
    assert any("absent.lightning.LENGTH; state model.sequence" in line for line in imported.unread)


def test_nothing_of_a_recipe_runs(tmp_path):
    writes = f"open({str(tmp_path / 'ran')!r}, 'w')"
    text = f"{writes}\n\ndef recipe():\n    {writes}\n    return C(x=1)\n"
    built(tmp_path, text)
    assert not (tmp_path / "ran").exists()


def test_the_task_of_nemo_chooses_the_recipe(tmp_path):
    folder = tmp_path / "nemo" / "collections" / "llm" / "recipes"
    folder.mkdir(parents=True)
    steps = ("recipe = pretrain_recipe()", "recipe.peft = run.Config(nl.LoRA)", "return recipe")
    tuned = "\n    ".join(("def finetune_recipe():", *steps))
    (folder / "tiny.py").write_text((JOBS / "recipes" / "nemo.py").read_text() + tuned)
    launch = tmp_path / "launch.sh"
    launch.write_text("nemo llm pretrain --factory 'tiny(nodes=2)' trainer.strategy.tensor_model_parallel_size=4\n")
    found = read_job([launch]).values
    assert (found["cluster.nodes"], found["parallel.tensor"], found["parallel.data"]) == (2, 4, 4)
    launch.write_text("nemo llm finetune --factory tiny\n")
    tuned = read_job([launch]).values
    assert tuned["model.frozen"] == "all"
    assert tuned["model.adapters"] == {"rank": 32, "on": ["queries", "keys", "values", "output", "up", "down"]}


def test_a_launch_that_names_a_recipe_has_its_values(tmp_path):
    launch = tmp_path / "launch.sh"
    flags = "--module models.tiny --config large --training.seq_len 1024"
    launch.write_text(f"torchrun --nnodes 4 --nproc-per-node 8 -m torchtitan.train {flags}\n")
    found = read_job([launch], places=[JOBS / "recipes"]).values
    lost = read_job([launch])
    assert (found["parallel.tensor"], found["parallel.data"], found["model.sequence"]) == (8, 4, 1024)
    assert any(line.startswith("config: large: its source is not beside the job") for line in lost.assumed)
