"""Scenarios that come with the package: all of them, by name, and complete."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import ROOT, SCENARIOS

from hybrid_des.analysis.stack_steps import stack_is_open
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.commands.docs import pages
from hybrid_des.scenario.loading import read_scenario, scenario_of
from hybrid_des.scenario.shipped import files_of, located, shipped, shipped_description, with_bases


@pytest.fixture
def hatch_build(monkeypatch):
    """The hooks of the build, without the builder."""
    for name, base in (("builders.hooks", "BuildHookInterface"), ("metadata", "MetadataHookInterface")):
        interface = ModuleType(f"hatchling.{name}.plugin.interface")
        setattr(interface, base, object)
        monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_of_a_wheel_links_to_no_file(hatch_build):
    made, metadata = hatch_build.Readme(), {}
    made.root = str(ROOT)
    made.update(metadata)
    text = metadata["readme"]["text"]
    assert "](" not in text and "Timeline of sixteen" not in text
    named = re.findall(r"`hybrid-des docs (\S+)`", text)
    assert len(named) > 10 and set(named) <= {*pages()}


def test_a_wheel_takes_scenarios_and_documentation_along(hatch_build):
    hook, taken = hatch_build.ShippedScenarios(), {"force_include": {}}
    hook.root = str(ROOT)
    hook.initialize("standard", taken)
    places = {place: Path(file) for file, place in taken["force_include"].items()}
    files = [*SCENARIOS.rglob("*.yaml"), *SCENARIOS.rglob("*.csv")]
    documents = [ROOT / "CHANGELOG.md", SCENARIOS / "REFERENCE.md", *ROOT.glob("docs/**/*.md")]
    scenarios = {f"hybrid_des/shipped/{file.relative_to(SCENARIOS).as_posix()}": file for file in files}
    docs = {f"hybrid_des/shipped/docs/{file.relative_to(ROOT).as_posix()}": file for file in documents}
    assert places == scenarios | docs
    assert len(scenarios) > 50
    assert len(docs) > 4
    hook.initialize("editable", none := {"force_include": {}})
    assert none["force_include"] == {}


def test_shipped_scenarios_say_which_stack_they_mean():
    files = [file for file in SCENARIOS.rglob("*.yaml") if "validation" not in file.parts]
    documents = [read_scenario(file) for file in files]
    alone = [one for one in documents if "model" in one.value and not {"sweep", "jobs"} & one.value.keys()]
    assert len(alone) > 20
    assert [one.source for one in alone if stack_is_open(scenario_of(one))] == []


def test_every_scenario_is_listed_with_what_it_shows(run):
    code, out, err = run("init", "--json")
    assert (code, err) == (0, [])
    rows = json.loads(out)
    files = {file.relative_to(SCENARIOS).with_suffix("").as_posix() for file in SCENARIOS.rglob("*.yaml")}
    assert {row["name"] for row in rows} == {name for name in files if not name.endswith("/base")}
    assert all(row["description"] for row in rows)
    lines = run("init")[1].splitlines()[1:]
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]


def _beside(file):
    """The values of a file, with tables in its folder by their names."""
    values = read_scenario(file).value
    if lengths := values.get("data", {}).get("lengths"):
        lengths["file"] = Path(lengths["file"]).relative_to(file.parent).as_posix()
    return values


@pytest.mark.parametrize("name", shipped())
def test_a_copy_means_what_the_original_means(run, tmp_path, name):
    code, out, err = run("init", name, "--out", tmp_path / "mine")
    copy = Path(out.split(": ")[0])
    assert (code, copy.parent) == (0, tmp_path / "mine")
    assert len(err) == len(list((tmp_path / "mine").iterdir())) - 1
    original, own = (_beside(file) for file in (shipped()[name], copy))
    for table in files_of(original):
        assert (copy.parent / table).read_text() == (shipped()[name].parent / table).read_text()
    assert own == original


def test_a_file_of_ones_own_is_not_overwritten(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init", "a100_8x")[0] == 0
    assert run("init", "a100_8x")[0] == 0  # the same again
    Path("a100_8x.yaml").write_text("mine")
    assert run("init", "a100_8x") == (
        2,
        "",
        ["a100_8x.yaml: exists and differs; move it away, choose a folder with --out, or replace it with --force"],
    )
    assert Path("a100_8x.yaml").read_text() == "mine"


def test_force_replaces_a_file_and_says_so(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init", "a100_8x", "--force")[2] == []  # nothing is replaced
    text = Path("a100_8x.yaml").read_text()
    Path("a100_8x.yaml").write_text("mine")
    code, _, err = run("init", "a100_8x", "--force")
    assert (code, err) == (0, ["note: replaced a100_8x.yaml, which had other contents"])
    assert Path("a100_8x.yaml").read_text() == text
    Path("a100_8x.yaml").unlink()
    Path("a100_8x.yaml").mkdir()
    code, _, (line,) = run("init", "a100_8x", "--force")
    assert (code, line) == (2, "a100_8x.yaml: exists and differs; move it away: it is no file")


def test_an_unknown_name_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("init", "a100_8")
    assert (code, out, err) == (2, "", ['unknown "a100_8"; did you mean "a100_8x"?; hybrid-des init lists all'])
    with pytest.raises(UsageError):
        with_bases("../README")
    assert list(tmp_path.iterdir()) == []


def test_a_description_is_said_by_the_file():
    assert shipped_description(shipped()["a100_8x"]) == "4-stage 1F1B pipeline, 2 replicas, one DGX A100"
    assert shipped_description(shipped()["experiments/chunks"]).startswith("Chunks (virtual pipeline stages)")


def test_paths_of_the_documentation_need_no_clone(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("costs", "scenarios/search/13b_64.yaml", "--set", "search=none")
    assert (code, bool(out)) == (0, True)
    assert err == [
        "note: scenarios/search/13b_64.yaml is not in this folder; the one that comes with hybrid-des is read"
    ]


@pytest.mark.parametrize("name", ["scenarios/../README.md", "scenarios/none.yaml", "first.yaml", "scenarios"])
def test_other_paths_stay_what_they_are(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert located(name) == Path(name)


def test_a_file_of_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scenarios").mkdir()
    Path("scenarios/first.yaml").write_text("mine")
    assert located("scenarios/first.yaml").read_text() == "mine"
