"""What docstrings, comments and pages put between backticks exists."""

import ast
import io
import re
import tokenize
from functools import cache

import pytest
from support.paths import PACKAGE, ROOT, SCENARIOS
from support.sources import SOURCES, nodes_of, text_of

NAME = re.compile(r"(?<!`)`([A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    SCENARIOS / "REFERENCE.md",
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


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
FOREIGN |= {"before_sync", "first_samples", "long_tail"}  # put together from a trainer's states
FOREIGN |= {"max_head_offpolicyness", "max_staleness_steps", "max_trajectory_age_steps"}  # of RL frameworks


@cache
def described(file):
    """The docstrings and comments of a file, and the names and words of what is left of it."""
    nodes = nodes_of(file)
    told = [ast.get_docstring(node, clean=False) or "" for node in nodes if isinstance(node, DOCUMENTED)]
    tokens = list(tokenize.generate_tokens(io.StringIO(text_of(file)).readline))
    told += [token.string for token in tokens if token.type == tokenize.COMMENT]
    code = [token.string for token in tokens if token.type == tokenize.NAME]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return told, {*code, *WORD.findall(" ".join(texts.difference(told)))}


@cache
def known():
    """All names and words of the package's code and data, and of its folders and files."""
    data = [*PACKAGE.rglob("*.yaml"), *PACKAGE.rglob("*.json"), *PACKAGE.rglob("*.js"), *SCENARIOS.rglob("*.yaml")]
    parts = [part for file in ROOT.glob("[!.]*") for part in file.name.split(".")]
    for file in PACKAGE.rglob("*"):
        parts += file.relative_to(PACKAGE).as_posix().replace("/", ".").split(".")
    words = (WORD.findall(file.read_text(encoding="utf-8")) for file in data)
    return set(parts).union(*words, *(described(file)[1] for file in SOURCES))


def unknown(text):
    return sorted(
        name for name in NAME.findall(text) if name not in FOREIGN and not known().issuperset(name.split("."))
    )


def test_names_in_docstrings_and_comments_exist():
    named = {file.relative_to(PACKAGE).as_posix(): unknown("\n".join(described(file)[0])) for file in SOURCES}
    assert {file: names for file, names in named.items() if names} == {}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_names_in_pages_exist(file):
    assert unknown(file.read_text(encoding="utf-8")) == []


def test_unknown_names_are_found():
    assert unknown("`no_such_thing`, `gpu.no_such` and `pipeline.plan`") == ["gpu.no_such", "no_such_thing"]
