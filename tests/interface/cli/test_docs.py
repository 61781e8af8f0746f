"""The command `docs`: the pages of this version, and their sections."""

import json

from support.paths import ROOT


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
