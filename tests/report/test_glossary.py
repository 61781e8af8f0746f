"""Every term that explain uses is in the glossary, which `docs` finds; its other words are plain English."""

import ast
import re

import pytest
from support.explanations import explained
from support.paths import PACKAGE, ROOT
from support.scenarios import shared_nics

from hybrid_des import explain, render_explanation, simulate
from hybrid_des.analysis.idle import PARTS
from hybrid_des.analysis.verdict import OF_TRACES, SHARE_NAMES
from hybrid_des.interface.cli.glossary import meanings, words_of
from hybrid_des.pipeline.schedules import names, title_of
from hybrid_des.report.explained import GROUPS
from hybrid_des.report.explained_details import detail_blocks
from hybrid_des.report.memory_text import NAMES
from hybrid_des.report.palette import cause_name

GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
LABELS = ("Step", "Time", "Main loss", "Repair", "Change", "To fit", "Hardware", "Memory", "What if")
CAUSES = {cause_name(part).removeprefix("bubble: ").removeprefix("waiting for a ") for part in PARTS}
OF_DOCUMENTS = {"waiting for the document's other ranks"}  # a sentence of its own
TERMS = {
    *SHARE_NAMES.values(), *OF_TRACES.values(), *NAMES.values(), *GROUPS, *map(title_of, names()),
    *CAUSES - OF_DOCUMENTS, "activations", "likely", "prediction interval", "tight", "TP8", "micro-batches",
    "host inside ops",
}  # fmt: skip
WRITTEN = (  # whose strings are printed
    "report/explained.py", "report/explained_details.py", "report/memory_text.py", "analysis/verdict.py",
    "studies/advice/words.py", "studies/advice/catches.py", "studies/jobs/explained.py",
)  # fmt: skip
ENGLISH = (
    "activity all alone also among another any are as assumed at attention back begins behind beside bit bits "
    "buy by change changes communication computation compute computes copy cost costs could custom delaying "
    "details does each else ends enough equal equally even every exchanges fast faster fastest fewer fixed "
    "flag flags from gathered gb goes group hardware has help "
    "hold holds idle idles if into is it its job jobs kept label "
    "lacks last launch layer layers least left less like lines longer loss machine makes many mean meanwhile "
    "memory messages missing model modelled moments more most much name nearest need needs network next no "
    "node none not nothing of on one or other others over pairs pass per quicker reach record recorded refused "
    "repeats runs same save schedule second sent settings shapes shorter simulated single slow slowest spends "
    "split spread stay summed take takes tenth than that then these this through together too transfer travel "
    "tried turns twice two value values very wait waits was were what when which while whole with within "
    "without work would "
)
PLAIN = set(re.findall(r"\w+", ENGLISH))
KEYS = {"fbwag", "activation", "async", "cut", "every", "ends-", "zb-h", "zero-", "traced", "transients",
        "microbatches", "keys", "collective", "quick", "set", "fsdp", "queue", "queueing", "link"}  # fmt: skip
PRIVATE = re.compile(
    r"\b(held up|holds? \w+ up|ladder|nearly|unmatched|alike|images of|is off by|exchanges? between|products|adapters|"
    r"(?:its|these) laws?|a tie|ties|mend|as it is|the mean GPU|θ)\b|[FBW]\d+@\d|\d%", re.IGNORECASE,
)  # fmt: skip


def strings(file):
    """The constants of a module but for documentation, keys and formats."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)))
    told = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield re.sub(r"\b[a-z0-9]+(_[a-z0-9]+)+\b|^[.:,%>]\S*$", "", node.value)


def tokens(text):
    return {word.lower() for word in re.findall(r"[A-Za-z][A-Za-z-]+", text)}


def without_plural(words):
    return {word.removesuffix("s") for word in words}


@pytest.mark.parametrize("term", sorted(TERMS))
def test_every_term_has_a_line(term):
    assert meanings(GLOSSARY, term), f"{term}: no line of the glossary"


@pytest.mark.parametrize("file", WRITTEN)
def test_every_word_of_the_texts_is_plain_or_explained(file):
    known = without_plural({token for word in words_of(GLOSSARY) for token in tokens(word)})
    used = set().union(*map(tokens, strings(file)))
    assert without_plural(used - KEYS) - known - without_plural(PLAIN) == set()


def test_every_label_is_described():
    text = (ROOT / "docs" / "how-to" / "why.md").read_text(encoding="utf-8")
    found = explain(shared_nics(1, 1, 3))
    assert [label for label in LABELS if label not in text] == []
    assert [label for label, _ in detail_blocks(found, 100) if not (meanings(GLOSSARY, label) or label in text)] == []


@pytest.mark.parametrize("word", ["pipeline bubble", "TP8", "MFU", "zb-v", "Critical path"])
def test_docs_finds_a_word(ran, word):
    out, _ = ran("docs", *word.split(" ", 1))
    assert out.startswith("Glossary: ") and word.rstrip("8").lower() in out.lower()


@pytest.mark.parametrize("name", ["prototype_4gpu", "first", pytest.param("contention_slower", marks=pytest.mark.slow)])
def test_no_private_word_is_printed(name):
    found = explained(name)
    texts = [render_explanation(found, 120, details=True), simulate(found.run.scenario).report(width=120)]
    assert [match[0] for text in texts for match in PRIVATE.finditer(text)] == []


@pytest.mark.parametrize("file", WRITTEN)
def test_no_private_word_is_in_the_texts(file):
    assert [text for text in strings(file) if PRIVATE.search(text)] == []
