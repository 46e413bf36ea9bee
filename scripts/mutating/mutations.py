"""`mutations_of`: the ways in which one line of a module can be broken, found by its syntax tree.

Only what changes behaviour is offered: never docstrings, log lines, messages for people, types,
assertions that narrow types, or waiting times.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NEXT_DOOR: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
LOG_METHODS = ("debug", "info", "warning", "error", "exception", "critical")
SMALL = 9  # greater numbers are sizes and limits, where one more or less is no fault
_WORD = re.compile(r"[A-Za-z_][\w.:/-]{0,60}")
_LOGGER = re.compile(r"(?:.*\.)?_?log(?:ger)?(?:\.bind\(.*\))?")
_WAITING = re.compile(r"timeout|_s$|seconds|patience|delay|buffer|limit|size|flags|mode|maxsize")
_UNTOUCHED_CALLS = ("cast", "TypeVar", "field", "key", "optional", "section", "LogLine", "print")
_HOUSEKEEPING = re.compile(r"a?close|kill|cancel|clear|discard|release|wait_closed|sleep|set_name")
_FOR_PEOPLE = ("fix", "doc", "help", "description", "summary", "title", "why", "hint", "message")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to break one statement: the bytes that go and those that come."""

    line: int  # where the statement begins, as coverage counts
    kind: str
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the module with this break in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        """Return it in one line."""
        shown = f"{self.kind}: {self.before} -> {self.after}"
        return " ".join(shown.split())[:120]


def mutations_of(source: bytes) -> list[Mutation]:
    """Return every break of a module that is offered, in the order of the text."""
    tree = ast.parse(source)
    walker = _Walker(source)
    walker.body(tree.body, function="")
    return sorted(walker.found, key=lambda one: (one.start, one.kind))


class _Walker:
    def __init__(self, source: bytes) -> None:
        self.found: list[Mutation] = []
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def body(self, statements: list[ast.stmt], function: str) -> None:
        """Look at the statements of one block, in the function of that name."""
        for one in statements:
            self._statement(one, function)

    def _statement(self, one: ast.stmt, function: str) -> None:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            if not _is_stub(one):
                self.body(one.body, one.name)
            return
        if isinstance(one, ast.ClassDef):
            if "Protocol" not in {_last_name(base) for base in one.bases}:
                self.body(one.body, "")
            return
        if isinstance(one, ast.Assert):
            return  # narrows a type; nothing relies on it
        if not function and not isinstance(one, ast.If | ast.Try):
            return  # tables and imports run once, when the module is loaded: no test's own line
        if function:
            self._drops(one, function)
            for name, value in ast.iter_fields(one):
                if name not in {"body", "orelse", "finalbody", "handlers", "annotation", "cases"}:
                    for expression in _expressions(value):
                        self._expression(expression, one)
        for block in _blocks(one):
            self.body(block, function)

    # -- statements ----------------------------------------------------------------------------

    def _drops(self, one: ast.stmt, function: str) -> None:
        match one:
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())) if not (
                _is_log(one) or _is_housekeeping(one)
            ):
                self._add(one, one, "drop", "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() if (
                function != "__init__"
            ):
                self._add(one, one, "drop", "pass")
            case ast.Raise(exc=ast.expr()):
                self._add(one, one, "no raise", "pass")
            case ast.Continue() | ast.Break():
                self._add(one, one, "drop", "pass")
            case ast.Return(value=ast.expr() as value) if not _is_empty(value):
                self._add(one, one, "return", "return None")
            case ast.If(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                self._add(one, test, "negate", f"(not ({ast.unparse(test)}))")
            case _:
                pass

    # -- expressions ---------------------------------------------------------------------------

    def _expression(self, node: ast.AST, statement: ast.stmt) -> None:
        if _is_untouched(node):
            return
        match node:
            case ast.Compare(left=left, ops=[one], comparators=right):
                for table, kind in ((NEGATED, "negate"), (NEXT_DOOR, "off by one")):
                    if type(one) in table:
                        changed = ast.Compare(left, [table[type(one)]()], right)
                        self._add(statement, node, kind, f"({ast.unparse(changed)})")
            case ast.BoolOp(op=op, values=values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                self._add(statement, node, "and/or", f"({ast.unparse(ast.BoolOp(other, values))})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._add(statement, node, "no not", f"({ast.unparse(operand)})")
            case ast.Constant(value=value):
                self._constant(node, value, statement)
            case _:
                pass
        for below in ast.iter_child_nodes(node):
            if isinstance(below, ast.keyword):
                name = below.arg or ""
                if not _WAITING.search(name) and name not in _FOR_PEOPLE:
                    self._expression(below.value, statement)
            elif isinstance(below, ast.expr | ast.comprehension):
                self._expression(below, statement)

    def _constant(self, node: ast.Constant, value: object, statement: ast.stmt) -> None:
        if isinstance(value, bool):
            self._add(statement, node, "constant", str(not value))
        elif isinstance(value, int) and 0 <= value <= SMALL:
            self._add(statement, node, "constant", str(value + 1))
        elif isinstance(value, str) and _WORD.fullmatch(value):
            self._add(statement, node, "constant", repr(value + "_x"))

    def _add(self, statement: ast.stmt, node: ast.stmt | ast.expr, kind: str, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        before = self._source[start:end].decode()
        self.found.append(Mutation(statement.lineno, kind, start, end, before, after))


def _expressions(value: object) -> Iterator[ast.expr]:
    if isinstance(value, ast.expr):
        yield value
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, ast.expr):
                yield one
            elif isinstance(one, ast.withitem):
                yield one.context_expr


def _blocks(one: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(one, name, [])
    for part in (*getattr(one, "handlers", ()), *getattr(one, "cases", ())):
        yield part.body


def _is_stub(one: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether it only declares (an overload, an abstract method) or only shows itself."""
    marks = {_last_name(mark) for mark in one.decorator_list}
    return bool(marks & {"overload", "abstractmethod"}) or one.name in {"__repr__", "__str__"}


def _is_empty(value: ast.expr) -> bool:
    """Return whether None instead of this would often mean the same."""
    if isinstance(value, ast.Constant):
        return not value.value
    return isinstance(value, ast.Tuple | ast.List) and not value.elts


def _is_log(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr | ast.Await) else node
    if isinstance(call, ast.Await):
        call = call.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in LOG_METHODS
        and _LOGGER.fullmatch(ast.unparse(call.func.value)) is not None
    )


def _is_housekeeping(node: ast.Expr) -> bool:
    """Return whether a statement only gives back what would be given back a little later anyway."""
    call = node.value.value if isinstance(node.value, ast.Await) else node.value
    return _HOUSEKEEPING.fullmatch(_last_name(call)) is not None


def _is_untouched(node: ast.AST) -> bool:
    """Return whether a part of an expression is left alone, with everything in it."""
    if isinstance(node, ast.JoinedStr | ast.Lambda):
        return True  # texts for people; before 3.12 their parts have no usable places either
    return _is_log(node) or (
        isinstance(node, ast.Call) and _last_name(node.func) in _UNTOUCHED_CALLS
    )


def _last_name(node: ast.AST) -> str:
    """Return `c` of `a.b.c`, `a.b.c(…)` and `a.b.c[…]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


__all__ = ["Mutation", "mutations_of"]
