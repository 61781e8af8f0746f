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
    assert (code, err) == (2, ['unknown page "referense"; did you mean "reference"?; hybrid-des docs lists all'])
    code, _, err = run("docs", "reference", "gradiants")
    assert (code, err) == (2, ['section: unknown "gradiants"; did you mean "gradients"?'])
