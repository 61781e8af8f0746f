"""Every word that the text of explain uses has a line in the glossary."""

import re

from support.paths import ROOT

from hybrid_des.analysis.verdict import SHARE_NAMES
from hybrid_des.report.memory_text import NAMES

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
LABELS = ("Step", "Time", "Main loss", "Mend", "Change", "To fit", "Hardware", "Memory", "What if")


def test_every_share_and_tensor_has_a_line():
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    words = {word.strip() for line in lines if line.startswith("| ") for word in re.split(r", |\|", line.split("|")[1])}
    assert len(words) > 30
    assert {*SHARE_NAMES.values(), *NAMES.values(), "activations", "likely", "tight", "held up by"} - words == set()


def test_every_label_is_described():
    text = (ROOT / "docs" / "how-to" / "why.md").read_text(encoding="utf-8")
    assert [label for label in LABELS if label not in text] == []
