"""Statements and expressions of recipes, worked out without running them.

A condition that cannot be told leaves both of its branches open: what is assigned in them, or after a return among
them, is undecided, and its text is the condition. A function of a module that is not found makes an object of its name.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, one_line
from hybrid_des.interchange.recipes import operations
from hybrid_des.interchange.recipes.sources import Module, Sources
from hybrid_des.interchange.recipes.values import OWNER, TARGET, Function, Made, Reference, Undecided, truth

MOST_STEPS = 200_000  # expressions and statements of a recipe
DEEPEST = 40  # calls inside of each other, and imports
_PARTIAL = ("nemo_run.Config", "nemo_run.Partial", "fiddle.Config", "fiddle.Partial", "functools.partial")
_GOES_ON: Any = object()  # the end of a block without a return


class Frame:
    """A function while it is worked out.

    Attributes:
        module: in which it is defined.
        names: its variables.
        condition: which decides whether its statements run; None if they do.
        depth: calls around it.
    """

    def __init__(self, module: Module, names: dict[str, Any], condition: Undecided | None, depth: int) -> None:
        self.module, self.names, self.condition, self.depth = module, names, condition, depth


class Evaluation:
    """Works out functions and scripts.

    Attributes:
        made: objects that variables were bound to or functions returned, in order.
        not_followed: calls of functions whose source was not found, and that may change an object that they are given.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._left = MOST_STEPS
        self._globals: dict[tuple[Module, str], Any] = {}
        self.made: list[Made] = []
        self.not_followed: list[str] = []

    def script(self, module: Module) -> None:
        """Work out the statements of a module, as those of a program."""
        self._body(module.tree.body, Frame(module, {"__name__": "__main__"}, None, 0))

    def expression(self, text: str, module: Module) -> Any:
        """What an expression in a module is worth, such as a call of one of its functions."""
        return self._worth(ast.parse(text, mode="eval").body, Frame(module, {}, None, 0))

    def call(
        self, function: Function, args: Sequence[Any], named: Mapping[str, Any], condition: Undecided | None, depth: int
    ) -> Any:
        """The result of a function, or the object of a class."""
        if isinstance(function.node, ast.ClassDef):
            return self._new(function, args, named, depth)
        if depth > DEEPEST:
            return Undecided(f"{function.name}()")
        names = self._arguments(function, args, named, depth)
        frame = Frame(function.module, names, condition, depth + 1)
        if isinstance(function.node, ast.Lambda):
            return self._worth(function.node.body, frame)
        result = self._body(function.node.body, frame)
        return None if result is _GOES_ON else result

    def _arguments(
        self, function: Function, args: Sequence[Any], named: Mapping[str, Any], depth: int
    ) -> dict[str, Any]:
        """The variables with which a function begins."""
        given = function.node.args  # type: ignore[union-attr]
        positional = [*given.posonlyargs, *given.args]
        frame = Frame(function.module, {}, None, depth)
        names: dict[str, Any] = {one.arg: Undecided(one.arg) for one in (*positional, *given.kwonlyargs)}
        pairs = [*zip(reversed(positional), reversed(given.defaults), strict=False)]
        pairs += [(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default]
        names |= {one.arg: self._worth(default, frame) for one, default in pairs}
        names |= {one.arg: value for one, value in zip(positional, args, strict=False)}
        names |= {name: value for name, value in named.items() if name in names}
        if given.kwarg:
            names[given.kwarg.arg] = {name: value for name, value in named.items() if name not in names}
        if given.vararg:
            names[given.vararg.arg] = tuple(args[len(positional) :])
        return names

    def _new(self, of: Function | Reference, args: Sequence[Any], named: Mapping[str, Any], depth: int) -> Made:
        """An object that a call makes, with the defaults of its class; of `run.Config(Class)`, that of the class."""
        packages = of.module.path.parts if isinstance(of, Function) else ()
        names = (of.name, *(f"{part}.{of.name}" for part in packages))
        if any(name in _PARTIAL for name in names) and args and isinstance(args[0], Reference | Function):
            of, args, named = args[0], args[1:], {"_partial_": True, **named}
        own = self._fields(of, depth) if isinstance(of, Function) and isinstance(of.node, ast.ClassDef) else {}
        places = [*own, *(str(at) for at in range(len(args)))] if own else [str(at) for at in range(len(args))]
        stated = {name: value for name, value in own.items() if not isinstance(value, Undecided)}
        return Made({TARGET: of.name, **stated, **dict(zip(places, args, strict=False)), **named})

    def _fields(self, of: Function, depth: int) -> dict[str, Any]:
        """The fields of a dataclass and of those below it, each with its default."""
        node = of.node
        is_data = isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        if not isinstance(node, ast.ClassDef) or not is_data or depth > DEEPEST:
            return {}
        frame = Frame(of.module, {}, None, depth + 1)
        bases = [self._worth(base, frame) for base in node.bases]
        fields: dict[str, Any] = {}
        for base in bases:
            fields |= self._fields(base, depth + 1) if isinstance(base, Function) else {}
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and _is_field(statement.target):
                fields[ast.unparse(statement.target)] = self._default(statement, frame)
        return fields

    def _default(self, statement: ast.AnnAssign, frame: Frame) -> Any:
        """The default of a field; undecided without one."""
        if statement.value is None:
            return _shown(statement, frame)
        value = self._worth(statement.value, frame)
        if not isinstance(value, Made) or value[TARGET].rpartition(".")[2] != "field":
            return value
        if isinstance(factory := value.get("default_factory"), Function):
            return self.call(factory, (), {}, None, frame.depth)
        return value.get("default", _shown(statement, frame))

    def _body(self, statements: Sequence[ast.stmt], frame: Frame) -> Any:
        """Work out statements until one returns; its value, or `_GOES_ON`."""
        for statement in statements:
            self._left -= 1
            result = self._statement(statement, frame)
            if result is not _GOES_ON:
                if frame.condition is None:
                    return result
                return Undecided(frame.condition) if not isinstance(result, Made) else result
        return _GOES_ON

    def _statement(self, statement: ast.stmt, frame: Frame) -> Any:
        match statement:
            case ast.Return(value=value):
                return self._bound(None if value is None else self._worth(value, frame))
            case ast.Assign(targets=targets, value=value):
                worth = self._worth(value, frame)
                for target in targets:
                    self._assign(target, worth, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._worth(value, frame), frame)
            case ast.AugAssign(target=target, op=op, value=value):
                now = ast.BinOp(left=_loaded(target), op=op, right=value)
                self._assign(target, self._worth(ast.copy_location(now, statement), frame), frame)
            case ast.Expr(value=value):
                self._worth(value, frame)
            case ast.If(test=test, body=body, orelse=otherwise):
                return self._either(test, body, otherwise, frame)
            case ast.For(target=target, iter=over, body=body):
                return self._loop(target, self._worth(over, frame), body, frame)
            case ast.While(test=test, body=body):
                return self._open([body], _shown(test, frame), frame)
            case ast.With(body=body):
                return self._body(body, frame)
            case ast.Try(body=body, orelse=otherwise, finalbody=final):
                return self._body([*body, *otherwise, *final], frame)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                frame.names[statement.name] = Function(statement, frame.module)
            case ast.Import() | ast.ImportFrom():
                frame.names |= {name: self._imported(statement, name, frame) for name in _names(statement)}
        return _GOES_ON

    def _either(self, test: ast.expr, body: list[ast.stmt], otherwise: list[ast.stmt], frame: Frame) -> Any:
        """The branch that a condition chooses, or both."""
        holds = truth(self._worth(test, frame))
        if not isinstance(holds, Undecided):
            return self._body(body if holds else otherwise, frame)
        return self._open([body, otherwise], _shown(test, frame), frame)

    def _loop(self, target: ast.expr, over: Any, body: list[ast.stmt], frame: Frame) -> Any:
        """A body for each element, or for any, if they are not known."""
        if isinstance(over, Undecided | Reference | Made | Function) or not isinstance(over, _ITERABLE):
            return self._open([body], Undecided(f"{over}"), frame)
        for element in over:
            if self._left < 0:
                break
            self._assign(target, element, frame)
            result = self._body(body, frame)
            if result is not _GOES_ON:
                return result
        return _GOES_ON

    def _open(self, branches: Sequence[list[ast.stmt]], condition: Undecided, frame: Frame) -> Any:
        """Work out statements that may run or not; what follows a return among them may run or not, too."""
        before = frame.condition
        returns = False
        for branch in branches:
            frame.condition = before or condition
            returns |= self._body([one for one in branch if not isinstance(one, ast.Raise)], frame) is not _GOES_ON
        frame.condition = before or (condition if returns else None)
        return _GOES_ON

    def _assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Give a variable, an attribute or an element its value; it is undecided under a condition that is."""
        is_own = isinstance(target, ast.Name) and (value is None or isinstance(value, Made | Function))
        if frame.condition is not None and not is_own:
            value = frame.condition
        match target:
            case ast.Name(id=name):
                frame.names[name] = self._bound(value)
            case ast.Attribute(value=of, attr=name):
                owner = self._owner(of, frame)
                if isinstance(owner, Made):
                    owner[name] = value
            case ast.Subscript(value=of, slice=at):
                operations.put(self._worth(of, frame), self._worth(at, frame), value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                known = value if isinstance(value, tuple | list) and len(value) == len(elements) else None
                for number, element in enumerate(elements):
                    part = known[number] if known is not None else _part(value, number, target, frame)
                    self._assign(element, part, frame)

    def _owner(self, of: ast.expr, frame: Frame) -> Any:
        """The object whose attribute is assigned; one that was not stated is made where it is missing."""
        owner = self._worth(of, frame)
        if isinstance(of, ast.Attribute) and not isinstance(owner, Made):
            around = self._owner(of.value, frame)
            if isinstance(around, Made) and of.attr not in around:
                owner = around[of.attr] = Made({TARGET: of.attr.capitalize()})
        return owner

    def _bound(self, value: Any) -> Any:
        if isinstance(value, Made):
            self.made.append(value)
        return value

    def _worth(self, node: ast.expr, frame: Frame) -> Any:
        self._left -= 1
        if self._left < 0:
            return Undecided(_shown(node, frame))
        worth = getattr(self, f"_{type(node).__name__.lower()}", None)
        return Undecided(_shown(node, frame)) if worth is None else worth(node, frame)

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        return frame.names[node.id] if node.id in frame.names else self._global(frame.module, node.id)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        owner = self._worth(node.value, frame)
        if isinstance(owner, Module):
            bound = self._global(owner, node.attr)
            unbound = isinstance(bound, Reference) and bound.name == node.attr
            return Reference(f"{owner.folder.name}.{node.attr}") if unbound else bound
        if isinstance(owner, Function):
            return Reference(f"{owner.name}.{node.attr}")
        if isinstance(owner, Undecided):
            return Undecided(owner)
        return operations.attribute(owner, node.attr, _shown(node, frame))

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        args = [one for given in node.args for one in self._unpacked(given, frame)]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._worth(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named |= {str(name): one for name, one in value.items() if name != TARGET}
        if isinstance(node.func, ast.Attribute):
            receiver = self._worth(node.func.value, frame)
            result = operations.method(receiver, node.func.attr, args, _shown(node, frame))
            if result is not ...:
                if result is None and frame.condition is not None and isinstance(receiver, list):
                    receiver[-1:] = [frame.condition]  # one more element, which is undecided
                return result
            if isinstance(receiver, Made) and node.func.attr not in receiver:
                target = Reference(f"{receiver[TARGET]}.{node.func.attr}")
                return self._new(target, args, {OWNER: receiver, **named}, frame.depth)
        function = self._worth(node.func, frame)
        if isinstance(function, Function):
            return self.call(function, args, named, frame.condition, frame.depth)
        if not isinstance(function, Reference):
            return Undecided(_shown(node, frame))
        result = operations.built_in(function.name, args, named, _shown(node, frame))
        if result is not ...:
            return result
        made = self._new(function, args, named, frame.depth)
        given = any(isinstance(one, Made) and one.is_of_class for one in made.values())
        if given and not made.is_of_class and function.name != "print":
            self.not_followed.append(_shown(node, frame))
        return made

    def _unpacked(self, node: ast.expr, frame: Frame) -> Iterator[Any]:
        if not isinstance(node, ast.Starred):
            yield self._worth(node, frame)
            return
        value = self._worth(node.value, frame)
        yield from value if isinstance(value, _ITERABLE) else [Undecided(_shown(node, frame))]

    def _list(self, node: ast.List, frame: Frame) -> Any:
        elements = [one for given in node.elts for one in self._unpacked(given, frame)]
        return operations.limited(elements, _shown(node, frame))

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        elements = tuple(one for given in node.elts for one in self._unpacked(given, frame))
        return operations.limited(elements, _shown(node, frame))

    def _dict(self, node: ast.Dict, frame: Frame) -> Any:
        values: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            worth = self._worth(value, frame)
            if key is not None:
                name = self._worth(key, frame)
                values[name if isinstance(name, str | int | float | tuple | None) else repr(name)] = worth
            elif isinstance(worth, dict):
                values |= worth
        return values

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        owner, key, shown = self._worth(node.value, frame), self._worth(node.slice, frame), _shown(node, frame)
        if isinstance(owner, Made | Reference | Function | Undecided):
            return Undecided(shown)
        return operations.calculated(lambda at: owner[at], (key,), shown)

    def _slice(self, node: ast.Slice, frame: Frame) -> Any:
        return slice(*(None if one is None else self._worth(one, frame) for one in (node.lower, node.upper, node.step)))

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Any:
        holds = truth(self._worth(node.test, frame))
        if isinstance(holds, Undecided):
            return Undecided(_shown(node, frame))
        return self._worth(node.body if holds else node.orelse, frame)

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Any:
        values: list[Any] = []
        for given in node.values:  # an `and` that is false, or an `or` that is true, ends it
            values.append(self._worth(given, frame))
            if truth(values[-1]) is isinstance(node.op, ast.Or):
                break
        return operations.all_or_any(node.op, values)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value, shown = self._worth(node.operand, frame), _shown(node, frame)
        if isinstance(node.op, ast.Not):
            holds = truth(value)
            return holds if isinstance(holds, Undecided) else not holds
        return operations.calculated(
            lambda number: -number if isinstance(node.op, ast.USub) else +number, (value,), shown
        )

    def _binop(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self._worth(node.left, frame), self._worth(node.right, frame)
        return operations.binary(node.op, left, right, _shown(node, frame))

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left, holds = self._worth(node.left, frame), True
        for kind, given in zip(node.ops, node.comparators, strict=True):
            right = self._worth(given, frame)
            holds = operations.compared(kind, left, right, _shown(node, frame))
            if isinstance(holds, Undecided) or not holds:
                return holds
            left = right
        return holds

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        inner = [one.value if isinstance(one, ast.FormattedValue) else one for one in node.values]
        parts, shown = [self._worth(one, frame) for one in inner], _shown(node, frame)
        return operations.limited(operations.calculated(lambda *given: "".join(map(str, given)), parts, shown), shown)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Any:
        return Function(node, frame.module)

    def _global(self, module: Module, name: str, depth: int = 0) -> Any:
        """What a module binds a name to; built-in functions and what is not found stay names."""
        key = module, name
        if key not in self._globals:
            self._globals[key] = Undecided(name)  # where it depends on itself
            self._globals[key] = self._looked_up(module, name, depth)
        return self._globals[key]

    def _looked_up(self, module: Module, name: str, depth: int) -> Any:
        statement = module.names.get(name)
        frame = Frame(module, {}, None, depth)
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return Function(statement, module)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self._worth(value, frame)
            case ast.Import() | ast.ImportFrom():
                return self._imported(statement, name, frame)
        if depth < DEEPEST:
            for star in module.stars:
                bound = self._imported(ast.ImportFrom(star.module, [ast.alias(name)], star.level), name, frame)
                if not isinstance(bound, Reference | Undecided):
                    return bound
        inner = self._sources.relative(module, 1, name) if module.path.name == "__init__.py" else None
        return inner if inner is not None else Reference(name)

    def _imported(self, statement: ast.Import | ast.ImportFrom, name: str, frame: Frame) -> Any:
        """What an import binds a name to."""
        alias = next(one for one in statement.names if name in (one.asname, one.name, one.name.partition(".")[0]))
        if isinstance(statement, ast.Import):
            full = alias.name if alias.asname else name
            return self._sources.module(full) or Reference(full)
        package = statement.module or ""
        if statement.level:
            module = self._sources.relative(frame.module, statement.level, package)
        else:
            module = self._sources.module(package)
        full = f"{package}.{alias.name}".lstrip(".")
        if module is None:
            return Reference(full)
        inner = self._sources.relative(module, 1, alias.name) if module.path.name == "__init__.py" else None
        bound = self._global(module, alias.name, frame.depth + 1) if frame.depth < DEEPEST else Reference(full)
        if inner is not None and isinstance(bound, Reference | Undecided | Module):  # it imports its own modules
            return inner
        return Reference(full) if isinstance(bound, Reference) and bound.name == alias.name else bound


_ITERABLE = (list, tuple, range, set, str, dict)


def _shown(node: ast.AST, frame: Frame) -> Undecided:
    """An expression, and where it is."""
    return Undecided(f"{one_line(ast.unparse(node), LONGEST_SHOWN)} ({frame.module.path.name}:{node.lineno})")  # type: ignore[attr-defined]


def _is_field(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def _loaded(target: ast.expr) -> ast.expr:
    """A target of an assignment as the value that it has."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _names(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    return (alias.asname or alias.name.partition(".")[0] for alias in statement.names if alias.name != "*")


def _part(value: Any, at: int, target: ast.expr, frame: Frame) -> Any:
    """One of several values that a call returns: an object of its own, as which it can be changed."""
    if isinstance(value, Made) and not value.is_of_class:
        return Made({TARGET: f"{value[TARGET]}.{at}", **{key: one for key, one in value.items() if key != TARGET}})
    return _shown(target, frame)
