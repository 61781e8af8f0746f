"""The site of the documentation builds from the repository, without the network."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.slow

# what needs a network fails at once
WITHOUT_NETWORK = """
import socket
def refused(*_): raise OSError("no network")
socket.socket.connect = socket.getaddrinfo = refused
from mkdocs.__main__ import cli
cli(["build", "--strict", "--quiet", "--site-dir", {!r}])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings"))):
        pytest.skip("needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-c", WITHOUT_NETWORK.format(str(folder))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_site_has_every_page_of_its_contents(site):
    named = re.findall(r": (\S+)\.md$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert len(named) > 8
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {re.sub(r"README$", "index", name) + ".html" for name in named} <= built


def test_every_notebook_is_a_page_with_its_pictures(site):
    """Each of those with a picture shows it, and all can be downloaded."""
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        shown = set(re.findall(rf'src="({notebook.stem}_files/[^"]+)"', page))
        assert len(shown) == notebook.read_text().count('"image/png"'), notebook
        assert all((site / "notebooks" / name).stat().st_size > 1000 for name in shown)
        assert f'href="{notebook.name}"' in page
        assert (site / "notebooks" / notebook.name).exists()


@pytest.fixture(scope="module")
def tab(site, tmp_path_factory):
    """A browser's tab, and the address of the site on this machine."""
    support = pytest.importorskip("support.browser")
    if support.BROWSER is None:
        pytest.skip("needs Chromium")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with support.browser(tmp_path_factory.mktemp("profile")) as where:
        tab = support.Tab(where)
        yield tab, f"http://127.0.0.1:{server.server_port}"
        tab.close()
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_):
        pass


def test_the_search_finds_a_key_in_its_section(tab):
    tab, address = tab
    tab.send("Page.navigate", url=f"{address}/index.html?q=max_activations")
    tab.until("document.querySelector('.md-search-result__link')")
    first = tab.run("document.querySelector('.md-search-result__link').href")
    assert first.startswith(f"{address}/scenarios/reference/schedule.html")
    assert tab.wrong == []


@pytest.mark.parametrize(("dark", "drawn"), [(False, "none"), (True, "invert(0.9) hue-rotate(180deg)")])
def test_dark_pages_show_dark_pictures(tab, dark, drawn):
    tab, address = tab
    tab.screen(1400, 1000, dark=dark)
    tab.send("Page.navigate", url=f"{address}/index.html")
    tab.until("location.hostname && document.readyState === 'complete'")
    tab.run("localStorage.clear()")  # what an earlier visit preferred
    tab.send("Page.navigate", url=f"{address}/index.html?dark={dark}")
    tab.until(f"location.search.endsWith('{dark}') && document.querySelector('.md-content img')?.complete")
    assert tab.run("getComputedStyle(document.querySelector('.md-content img')).filter") == drawn


def test_pages_ask_nothing_of_the_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())
        assert loaded == [], page


def test_the_reference_of_commands_has_all_of_them(site):
    from hybrid_des.interface.cli import command_files

    text = (site / "reference/commands.html").read_text()
    assert [name for name in command_files.names() if f"hybrid-des {name}" not in text] == []


def test_the_site_names_the_version(site):
    import hybrid_des

    assert f"hybrid_des {hybrid_des.__version__}" in (site / "index.html").read_text()
