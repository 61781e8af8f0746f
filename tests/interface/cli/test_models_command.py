"""The list of models, the options of one, and the page that the command writes."""

import json

import yaml
from support.paths import ROOT

from hybrid_des import load
from hybrid_des.interface.cli.commands.models import page
from hybrid_des.workload.models import catalogue


def test_the_page_of_models_is_fresh():
    told = "run: python -m hybrid_des models --out docs/reference/catalogue.md"
    assert (ROOT / "docs/reference/catalogue.md").read_text(encoding="utf-8") == page(), told


def test_every_model_of_the_catalogue_is_listed(run):
    rows = json.loads(run("models", "--json")[1])
    assert [row["model"] for row in rows] == catalogue.names()
    assert all(row["parameters"] >= row["active_parameters"] > 0 for row in rows)


def test_the_options_of_a_model_are_a_scenario(run):
    code, out, _ = run("models", "qwen3.5-35b-a3b")
    written = yaml.safe_load(out.partition("\n\n")[2])
    assert code == 0
    assert load(written | {"cluster": {"gpu": "h100"}}).model.network == catalogue.model("qwen3.5-35b-a3b")


def test_an_unknown_model_is_answered_in_one_line(run):
    code, _, err = run("models", "qwen3-8")
    assert (code, len(err)) == (2, 1) and 'did you mean "qwen3-8b"?' in err[0]
