"""What docstrings, comments and pages put between backticks exists."""

import ast
import io
import re
import tokenize

import pytest
from support.paths import PACKAGE, ROOT, SCENARIOS

NAME = re.compile(r"(?<!`)`([A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    SCENARIOS / "REFERENCE.md",
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


def described(text):
    """The docstrings and comments of a file, and the names and words of what is left of it."""
    tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    told = [ast.get_docstring(node, clean=False) or "" for node in nodes]
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    told += [token.string for token in tokens if token.type == tokenize.COMMENT]
    code = [token.string for token in tokens if token.type == tokenize.NAME]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return told, {*code, *WORD.findall(" ".join(text for text in texts if text not in told))}


SOURCES = {file: described(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
DATA = [*PACKAGE.rglob("*.yaml"), *PACKAGE.rglob("*.json"), *PACKAGE.rglob("*.js"), *SCENARIOS.rglob("*.yaml")]
KNOWN = set().union(*(words for _, words in SOURCES.values()))
KNOWN |= {word for file in DATA for word in WORD.findall(file.read_text(encoding="utf-8"))}
KNOWN |= {part for file in ROOT.glob("[!.]*") for part in file.name.split(".")}
KNOWN |= {
    part for file in PACKAGE.rglob("*") for part in file.relative_to(PACKAGE).as_posix().replace("/", ".").split(".")
}
FOREIGN = {  # names of other programs
    "LOKY_MAX_CPU_COUNT", "Runtime", "__del__", "baseTimeNanoseconds", "cross_device_reduce_1stage", "initialize_ub",
    "multimem_all_reduce_kernel", "ncclDevKernel_Generic", "ncclTopoGetAlgoTime", "pipeline_llm", "pp_rank_N.json",
    "torch.distributed.pipelining", "use_ce", "zb_v_sail",
}  # fmt: skip
FOREIGN |= {
    "a1",
    "g1",
    "jobs.gpt.schedule.knd",
    "p25",
    "p75",
    "schedule.knd",
    "stairs",
    "start_b",
}  # in examples, or ends
FOREIGN |= {"samples_per_gpu_s", "tokens_per_s"}  # put together from their unit


def unknown(text):
    return sorted(name for name in NAME.findall(text) if name not in FOREIGN and not KNOWN.issuperset(name.split(".")))


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_names_in_docstrings_and_comments_exist(file):
    assert unknown("\n".join(SOURCES[file][0])) == []


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_names_in_pages_exist(file):
    assert unknown(file.read_text(encoding="utf-8")) == []


def test_unknown_names_are_found():
    assert unknown("`no_such_thing`, `gpu.no_such` and `pipeline.plan`") == ["gpu.no_such", "no_such_thing"]
