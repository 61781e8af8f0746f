"""The shape of the package: imports, files, names and signatures."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import simpy
from support.paths import PACKAGE, ROOT
from support.sources import SOURCES, nodes_of, text_of, tree_of
from support.statements import statements

# from the ground up, whole rooms only; a room imports only from rows above its own
FLOORS = (
    {"errors", "units", "layout"},
    {"engine", "files", "options", "registry"},
    {"cluster", "pipeline", "workload"},
    {"collectives"},
    {"folding", "scenario"},
    {"interchange"},
    {"cost_model"},
    {"planning"},
    {"simulation"},
    {"shortcuts"},
    {"analysis"},
    {"report"},
    {"studies"},
    {"measured", "result"},
    {"interface"},
    {"__init__", "__main__"},
)


def modules():
    """Dotted names inside the package, each with its file."""
    for file in SOURCES:
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__" or len(parts) == 1), file


NAMES = dict(modules())
KERNEL = re.compile(r"\b(_now|_queue|_eid|_ok|_value|_defused|_active_proc|NORMAL|URGENT|PENDING)\b")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def floor_of(module):
    for floor, rooms in enumerate(FLOORS):
        if house(module) in rooms:
            return floor
    raise AssertionError(f"{module} has no floor: put its room into FLOORS, where it belongs")


@cache
def imported(name, *, top_only=False, typing=False):
    """Modules of the package that a module imports; those for type checking where asked."""
    found = []

    def enter(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            assert not node.orelse, f"{name}: an alternative to imports for types"
            return typing
        return not (top_only and isinstance(node, FUNCTIONS))

    for node in statements(tree_of(NAMES[name]).body, enter):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: import by full name"
            found += _from(node)
        elif isinstance(node, ast.Import):
            found += (_module(alias.name) for alias in node.names if _ours(alias.name))
    return found


def _ours(name):
    return name.split(".")[0] == "hybrid_des"


def _module(name):
    return name.partition(".")[2] or "__init__"


def _from(node):
    if _ours(node.module or ""):
        for alias in node.names:
            whole = _module(f"{node.module}.{alias.name}")
            yield whole if whole in NAMES else _module(node.module)


def house(module):
    """The room a module belongs to: its file, or its package."""
    return module.split(".")[0]


@pytest.mark.parametrize("typing", [False, True], ids=["imports", "imports and types"])
def test_imports_come_from_floors_below(typing):
    """A floor is what stands above the longest chain of rooms, `__init__` and `__main__` among them."""
    edges = [(module, other) for module in NAMES for other in imported(module, typing=typing)]
    assert len(edges) > len(NAMES)
    assert [
        f"{module} (row {floor_of(module)}) imports {other} (row {floor_of(other)})"
        for module, other in edges
        if floor_of(other) >= floor_of(module) and house(other) != house(module)
    ] == []


def test_the_plain_simulator_names_no_shortcut():
    below = {room for floor in FLOORS[: floor_of("simulation") + 1] for room in floor}
    named = {name for name in NAMES if house(name) in below and "shortcuts" in text_of(NAMES[name])}
    assert named == set()


def test_rooms_and_floors_are_few():
    assert len(FLOORS) <= 17
    assert len({file.parent for file in PACKAGE.glob("*/__init__.py")}) <= 17
    assert len(list(PACKAGE.glob("*.py"))) <= 9
    assert set().union(*FLOORS) == {house(name) for name in NAMES}


def test_a_package_hands_names_on_and_defines_none():
    """It says what the package is for, in at most 40 lines; what it names is defined in a file of that topic."""
    for file in PACKAGE.rglob("*/__init__.py"):
        tree = tree_of(file)
        kinds = {type(node) for node in tree.body[1:]} - {ast.Import, ast.ImportFrom, ast.Assign}
        assert not kinds and ast.get_docstring(tree), f"{file}: {kinds}"
        assert text_of(file).count("\n") <= 40, file


def test_no_file_has_banners():
    """A comment above a blank line heads a part of a file: that part wants a file of its own."""
    banner = re.compile(r"\n\n(#[^\n]*\n)+\n")
    assert [name for name, file in NAMES.items() if banner.search(text_of(file))] == []


@pytest.mark.parametrize("typing", [False, True], ids=["imports", "imports and types"])
def test_no_imports_go_round_in_a_circle(typing):
    edges = {name: {other for other in imported(name, typing=typing) if other != name} for name in NAMES}
    assert not set(circles(edges))


def test_private_names_stay_in_their_module():
    private = {
        f"{name}: {alias.name}"
        for name in NAMES
        for node in nodes_of(NAMES[name])
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name)
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    }
    assert private == set()


def circles(edges):
    """The sets of modules that import each other, by Tarjan: each as text."""
    index, low, stack = {}, {}, []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in index:
                yield from visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            members = stack[stack.index(name) :]
            del stack[-len(members) :]
            if len(members) > 1:
                yield ", ".join(sorted(members))

    for name in sorted(edges):
        if name not in index:
            yield from visit(name)


def test_circles_are_found():
    edges = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["a", "f"], "f": ["e"]}
    assert sorted(circles(edges)) == ["b, c", "e, f"]


def test_contributors_are_told_what_every_room_knows():
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    rooms = {file.parent.name for file in PACKAGE.glob("*/*.py")}
    assert rooms - {room for row in table for room in re.findall(r"`(\w+)`", row)} == set()


def test_no_function_takes_more_than_six_positional_parameters():
    long = set()
    functions = [
        (name, one) for name in NAMES for one in statements(tree_of(NAMES[name]).body) if isinstance(one, FUNCTIONS)
    ]
    for name, node in functions:
        positional = [a.arg for a in node.args.posonlyargs + node.args.args if a.arg not in ("self", "cls")]
        if len(positional) > 6:
            long.add(f"{name}.{node.name}: {len(positional)}")
    assert not long


def test_no_function_takes_more_than_eight_parameters():
    long = set()
    functions = [(name, one) for name in NAMES for one in nodes_of(NAMES[name]) if isinstance(one, FUNCTIONS)]
    for name, node in functions:
        given = [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
        if len({*given} - {"self", "cls"}) > 8:
            long.add(f"{name}.{node.name}: {len(given)}")
    assert not long


def test_only_a_scenario_and_a_run_have_many_fields():
    many = {
        f"{name}.{node.name}"
        for name in NAMES
        for node in nodes_of(NAMES[name])
        if isinstance(node, ast.ClassDef) and sum(isinstance(one, ast.AnnAssign) for one in node.body) > 25
    }
    assert many == {"scenario.keys.ScenarioKeys", "simulation.outcome.Run"}


def test_simpy_insides_are_known_to_the_engine_only():
    """Private attributes of SimPy's objects, private names imported from it, and those of its kernel as text."""
    private = {
        node.attr
        for file in Path(simpy.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr)
    }
    assert {"_queue", "_eid", "_ok", "_value"} <= private
    texts = {name: set(KERNEL.findall(text_of(file))) for name, file in NAMES.items()}
    assert {"_ok", "_value", "NORMAL"} <= set().union(*(texts[name] for name in NAMES if house(name) == "engine"))
    assert {name: found for name, found in texts.items() if found and house(name) != "engine"} == {}
    found = set()
    elsewhere = ((name, one) for name in NAMES if house(name) != "engine" for one in nodes_of(NAMES[name]))
    for name, node in elsewhere:
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr in private and not own:
                found.add(f"{name}: {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simpy"):
            found |= {f"{name}: {alias.name}" for alias in node.names if alias.name.startswith("_")}
    assert not found


CLI = ("", ".main", ".simulate", ".commands", ".command_files", ".old_names", ".arguments", ".output")
STARTS_WITH = {"__main__", "__init__", "errors", "interface", *(f"interface.cli{part}" for part in CLI)}


def test_starting_up_loads_nothing_heavy():
    """What the command line imports before it knows what to do."""
    heavy = {"numpy", "pandas", "matplotlib", "pydantic", "simpy", "yaml", "rich"}
    pending, seen = ["interface.cli", "__main__", "__init__"], set()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        tops = [node for node in tree_of(NAMES[module]).body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in tops:
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not heavy & {(name or "").split(".")[0] for name in names}, f"{module}: {names}"
        pending += imported(module, top_only=True)
    assert seen <= STARTS_WITH
