"""What a user reads is in the words of the field: the project's own words stay in the code."""

import ast
import inspect
import re

import pytest
from support.paths import PACKAGE
from support.sources import SOURCES, nodes_of

import hybrid_des
from hybrid_des.interface.cli import command_files

PRIVATE = {  # what to say instead
    r"adapters?": "NIC",
    r"products?": "GEMM",
    r"exchang(e|es|ed|ing)": "all-to-all, synchronise, send",
    r"laws?": "formula, timing model",
    r"ladder": "one-factor-at-a-time",
    r"alike": "identical, in the same way",
    r"images?": "counterpart, representative",
    r"(is|are|was|were) off by": "error",
    r"held up": "waits for",
    r"told apart": "distinguished",
    r"tells? .{0,30}apart": "distinguish",
    r"bills?": "cost",
    r"goes on with": "continues",
    r"knobs?": "parameter",
    r"is met|are met": "reproduced",
}
WORDS = re.compile(rf"\b({'|'.join(PRIVATE)})\b")
ELSEWHERE = (
    "analysis/",
    "interchange/",
    "report/explained",
    "report/page/",
    "report/compared",
    "workload/models/kinds/",
)
KEYS = re.compile(r"`[^`]*`|\[\"\w+\"\]|\b[\w.-]+\.(adapters|bill)\b|\badapters: ")  # of files, which do not change


def docstrings(nodes):
    """The nodes of all docstrings, those of attributes included."""
    for node in nodes:
        for one in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                yield one.value


def literals(file):
    """Texts of several words in a file, with their lines; without docstrings."""
    nodes = nodes_of(file)
    apart = {id(node) for node in docstrings(nodes)}
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) and id(node) not in apart else None
        if isinstance(text, str) and " " in text.strip():
            yield node.lineno, text


def private_words(text):
    return [found[0] for found in WORDS.finditer(KEYS.sub(" ", text))]


def files():
    paths = (file.relative_to(PACKAGE).as_posix() for file in SOURCES)
    return [path for path in paths if not path.startswith(ELSEWHERE)]


def test_messages_have_no_private_words():
    found = [
        f"{path}:{line}: {', '.join(words)}: {text[:90]}"
        for path in files()
        for line, text in literals(PACKAGE / path)
        if (words := private_words(text))
    ]
    assert found == []


@pytest.mark.parametrize("command", command_files.names())
def test_help_has_no_private_words(command):
    assert private_words(command_files.find(command).__doc__) == []


@pytest.mark.parametrize("name", hybrid_des.__all__)
def test_public_docstrings_have_no_private_words(name):
    found = getattr(hybrid_des, name)
    members = [one for key, one in vars(found).items() if key[0] != "_"] if inspect.isclass(found) else []
    for one in (found, *members):
        assert private_words(inspect.getdoc(one) or "") == [], one


def test_private_words_are_found():
    assert private_words("8 adapters per node are held up") == ["adapters", "held up"]
    assert private_words("`efficiency.adapters` and summary.json (`bill`)") == []
