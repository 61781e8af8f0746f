"""The command `docs`: the pages of this version, and their sections."""

import json

import pytest
from support.paths import ROOT

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.reference_keys import about
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.problem import sections_at

REFERENCE = (ROOT / "scenarios/REFERENCE.md").read_text(encoding="utf-8")


def test_pages_are_listed_with_their_titles(run):
    code, out, _ = run("docs", "--json")
    pages = json.loads(out)
    assert code == 0
    assert pages["reference"] == "Scenario reference"
    assert {"tutorial", "changes", "how-to/figures"} <= pages.keys()
    assert all(pages.values())
    assert "reference  " in run("docs")[1]


def test_a_page_is_printed_as_it_is(run):
    assert run("docs", "tutorial")[1] == (ROOT / "docs/tutorial.md").read_text()


def test_a_section_ends_at_the_next_heading(ran):
    out, _ = ran("docs", "reference", "parallel")
    assert out.startswith("### `parallel`\n")
    assert "`context_method`" in out
    assert "### `schedule`" not in out


def test_unknown_pages_and_sections_are_told(run):
    code, _, err = run("docs", "referense")
    assert (code, err) == (
        2,
        ['unknown page or key "referense"; did you mean "reference"?; hybrid-des docs lists the pages'],
    )
    code, _, err = run("docs", "reference", "gradiants")
    assert (code, err) == (2, ['section: unknown "gradiants"; did you mean "gradients"?'])


def test_a_key_is_looked_up_below_those_above_it(ran):
    whole, _ = ran("docs", "gradients.bucket", "--json")
    entries = json.loads(whole)["entries"]
    assert {entry["section"][-1] for entry in entries} == {"`gradients`"}
    assert all("bucket" in entry["names"] for entry in entries)
    out, _ = ran("docs", "gradients.bucket")
    assert out.startswith("The file > `gradients`: ")
    assert entries[0]["text"].split()[0] in out


def test_a_key_that_another_lists_is_found_there(ran):
    out, _ = ran("docs", "nvlink.in_switch", "--json")
    (entry,) = json.loads(out)["entries"]
    assert entry["names"] == ["nvlink"]
    assert "in_switch" in entry["text"]


def test_every_key_of_a_table_is_found(ran):
    """In particular those with escaped bars and several names in a cell."""
    for key in ("stages", "bubble_ratio", "peak_memory_bytes", "out_of_memory", "parallel.expert_tensor"):
        assert key.split(".")[-1] in ran("docs", key)[0]


@pytest.mark.parametrize(
    "key",
    ["cluster", "schedule", "workload", "parallel", "faults", "price", "train", "search", "sweep", "gradients",
     "jobs", "background", "numerics", "data", "slow", "jitter", "model", "limits"],
)  # fmt: skip
def test_a_key_that_heads_a_section_shows_it(ran, key):
    first = ran("docs", key)[0].splitlines()[0]
    assert first.startswith("##")
    assert key in first.lower()


def test_other_entries_of_a_headed_key_are_named_below(ran):
    out, _ = ran("docs", "cluster")
    assert "| `gpus_per_node` |" in out
    assert out.index("| `gpus_per_node` |") < out.index("see also The file > `jobs` and `background`: cluster")


def keys_of(section, above=()):
    """All keys below a section of a scenario, one level of lists and none of repetitions."""
    for key in section.known_keys():
        yield (*above, key)
        if len(above) < 2:
            for inner in sections_at(section, (key,)):
                yield from keys_of(inner, (*above, key))


def test_every_key_of_a_scenario_has_an_answer():
    """Its own row, a row of the same section, or what is said of the key above it; none of an unrelated section."""
    paths = sorted({*keys_of(Scenario)})
    assert len(paths) > 300
    for path in paths:
        entries = about(REFERENCE, ".".join(path))
        assert entries, path
    assert about(REFERENCE, "faults.checkpoint.every")[0].text.startswith("`every` is the work between two checkpoints")
    assert about(REFERENCE, "efficiency.memory")[0].names[:2] == ("gemm", "attention")
    assert about(REFERENCE, "gradients.outer.overlap")[0].section[-1] == "`outer`"
    assert about(REFERENCE, "model.hidden")[0].heads


def test_a_key_that_scenarios_lack_is_not_answered():
    with pytest.raises(UsageError, match="unknown page or key"):
        about(REFERENCE, "faults.nowhere.every")


def test_comments_in_code_are_no_headings():
    text = "## Real\n\n```yaml\n# not one\n```\n\n| key | meaning |\n|---|---|\n| `a` | text |\n"
    assert about(text, "a")[0].section == ("Real",)
