"""The page of a loop in a browser."""

import pytest
from support.browser import BROWSER, Tab, browser
from support.small_loop import TEXT

from hybrid_des import simulate_rl
from hybrid_des.scenario.strict_yaml import parse

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs chromium")]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The file of a page."""
    file = tmp_path_factory.mktemp("loop") / "loop.html"
    file.write_text(simulate_rl(parse(TEXT, "small")[0]).page(), encoding="utf-8")
    return file


def test_the_page_of_a_loop_never_scrolls_sideways(page, tmp_path):
    with browser(tmp_path / "profile") as where:
        tab = Tab(where)
        for width, dark in ((390, False), (390, True), (1400, False)):
            tab.screen(width, 1000, dark)
            tab.open(f"file://{page}")
            assert tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
            assert (tab.run("innerWidth"), tab.wrong) == (width, [])
        tab.close()


def test_a_button_copies_the_flags_of_a_change(page, tmp_path):
    with browser(tmp_path / "profile") as where:
        tab = Tab(where)
        tab.open(f"file://{page}")
        note = "(text) => { written.push(text); return Promise.resolve(); }"
        tab.run(f"window.written = []; navigator.clipboard.writeText = {note}")
        tab.run("document.querySelector('.card button.copy').click()")
        assert tab.run("written[0]").startswith("--set rl.")
        tab.close()
