"""A user's type checker: it accepts what is right, and finds what is not."""

import re
import subprocess
import sys

import pytest
from support.paths import ROOT

import hybrid_des

pytestmark = pytest.mark.slow

MISTAKES = {  # line by line: what mypy says of each
    'hd.search("a.yaml", job=2)': "call-arg",
    'hd.run_sweep("a.yaml", [], 2)': "call-arg|misc",
    'hd.simulate("a.yaml", budget="60s")': "call-arg",
    "hd.simulate(7)": "arg-type",
    'hd.load("a.yaml", {3: 4})': "arg-type|dict-item",
    'hd.spread("a.yaml", "many")': "arg-type",
    'hd.explain("a.yaml").tabels()': "attr-defined",
    'hd.compare("a.yaml", "b.yaml").change()': "operator",
    'hd.goodput("a.yaml", jobs=[2])': "arg-type",
    'hd.collective("ring", rank=8)': "call-arg",
    'hd.simulat("a.yaml")': "attr-defined",
    'hd.simulate("a.yaml").gantt(rank=[0])': "call-arg",
}


def mypy(folder, text):
    script = folder / "script.py"
    script.write_text(text)
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *cache, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_a_script_with_every_public_name_is_accepted(tmp_path):
    text = (ROOT / "tests/support/typed_use.py").read_text()
    named = set(re.findall(r"\bhd\.(\w+)", text))
    assert set(hybrid_des.__all__) <= named
    assert mypy(tmp_path, text) == ""


def test_mistakes_in_calls_are_found(tmp_path):
    lines = mypy(tmp_path, "\n".join(["import hybrid_des as hd", *MISTAKES])).splitlines()
    found = {}
    for line in lines:
        if match := re.search(r"script\.py:(\d+): error: .*\[([\w-]+)\]$", line):
            found.setdefault(int(match[1]), match[2])
    assert len(MISTAKES) >= 10
    for number, (mistake, code) in enumerate(MISTAKES.items(), start=2):
        assert re.fullmatch(code, found.get(number, "nothing")), (mistake, lines)


def test_examples_of_the_documentation_have_types(tmp_path):
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        (page, block)
        for page in pages
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) > 8
    for number, (page, block) in enumerate(blocks):
        (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block)
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *cache, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout + done.stderr == ""
