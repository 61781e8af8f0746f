"""The house stands: a module imports only from floors below its own, and no imports go round in a circle."""

import ast

import pytest
from support.paths import PACKAGE

# from the ground up; a room imports only from rows above its own
FLOORS = (
    {"errors", "units"},
    {"registry", "engine", "layout"},
    {"options"},
    {"hardware", "pipeline", "network"},
    {"collectives", "numerics", "timeline"},
    {"scenario", "calibration"},
    {"workload"},
    {"gradients"},
    {"simulation"},
    {"analysis"},
    {"report"},
    {"result"},
    {"sweep"},
    {"cli"},
    {"__main__"},
)


def modules():
    """Dotted names inside the package, each with its file."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__" or len(parts) == 1), file


NAMES = dict(modules())


def floor_of(module):
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for floor, rooms in enumerate(FLOORS):
            if ".".join(parts[:length]) in rooms:
                return floor
    raise AssertionError(f"{module} has no floor: put it into FLOORS, where it belongs")


def imported(file, top_only=False):
    """Modules of the package that a file imports, those for type checking left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: import by full name"
            yield from _from(node)
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("hybrid_des.") for alias in node.names if _ours(alias.name))
        elif not (top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            pending += ast.iter_child_nodes(node)


def _ours(name):
    return name.startswith("hybrid_des.")


def _from(node):
    if node.module == "hybrid_des":
        yield from (alias.name for alias in node.names if alias.name in NAMES)
    elif _ours(node.module or ""):
        module = node.module.removeprefix("hybrid_des.")
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            yield whole if whole in NAMES else module


def house(module):
    """The room a module belongs to: its file, or its package."""
    return module.split(".")[0]


@pytest.mark.parametrize("module", [name for name in NAMES if name != "__init__"])
def test_imports_come_from_floors_below(module):
    for other in imported(NAMES[module]):
        below = floor_of(other) < floor_of(module) or house(other) == house(module)
        assert below, f"{module} (row {floor_of(module)}) imports {other} (row {floor_of(other)})"


def test_no_imports_go_round_in_a_circle():
    edges = {name: {other for other in imported(file) if other != name} for name, file in NAMES.items()}
    done, path = set(), []

    def visit(name):
        if name in done:
            return
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        path.append(name)
        for other in sorted(edges.get(name, ())):
            visit(other)
        done.add(path.pop())

    for name in edges:
        visit(name)


@pytest.mark.parametrize("module", NAMES)
def test_files_stay_short(module):
    assert len(NAMES[module].read_text(encoding="utf-8").splitlines()) <= 300


STARTS_WITH = {"__main__", "__init__", "errors", "cli", "cli.main", "cli.simulate", "cli.commands", "cli.arguments"}
STARTS_WITH |= {"cli.dask", "cli.interrupts", "cli.output", "cli.status"}


def test_starting_up_loads_nothing_heavy():
    """What the command line imports before it knows what to do."""
    heavy = {"numpy", "pandas", "matplotlib", "pydantic", "simpy", "yaml", "rich"}
    pending, seen = ["cli", "__main__", "__init__"], set()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        tree = ast.parse(NAMES[module].read_text(encoding="utf-8"))
        tops = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in tops:
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not heavy & {(name or "").split(".")[0] for name in names}, f"{module}: {names}"
        pending += imported(NAMES[module], top_only=True)
    assert seen <= STARTS_WITH
