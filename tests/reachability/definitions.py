"""The definitions of a source tree, read by syntax: what each is called, and what it names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# Says how a definition works and nothing about who calls it; any other decorator registers it.
PLAIN_DECORATORS = frozenset(
    {
        *("property", "cached_property", "setter", "staticmethod", "classmethod", "override"),
        *("abstractmethod", "overload", "final", "cache", "lru_cache", "wraps", "total_ordering"),
        *("contextmanager", "asynccontextmanager", "dataclass", "record", "runtime_checkable"),
        *("singledispatch", "unique", "dataclass_transform", "no_type_check", "deprecated"),
    }
)
# Bases of other people's that call nothing of what a class adds to them.
QUIET_BASES = frozenset(
    {
        *("object", "Protocol", "Generic", "ABC", "Enum", "StrEnum", "IntEnum", "IntFlag", "Flag"),
        *("NamedTuple", "TypedDict", "Exception", "ValueError", "RuntimeError", "OSError"),
        *("LookupError", "KeyError", "str", "int", "dict", "tuple", "list", "Struct", "BaseModel"),
    }
)


@dataclass(slots=True)
class Definition:
    """A function, class or method, or the loose statements of a module (`name` is empty)."""

    module: str
    qualified: str
    line: int
    name: str
    owner: str = ""  # the class of a method, by its qualified name
    bases: tuple[str, ...] = ()
    is_class: bool = False
    is_protocol: bool = False
    registered: bool = False
    used: set[str] = field(default_factory=set[str])
    """The names and attributes that its own code mentions."""

    @property
    def key(self) -> str:
        """What it is known by: `kaged.a.b:Class.method`."""
        return f"{self.module}:{self.qualified}"

    @property
    def is_public(self) -> bool:
        """Whether nothing on the way to it has a name with an underscore in front."""
        return not any(part.startswith("_") for part in self.qualified.split("."))


@dataclass(slots=True)
class Module:
    """One file: its definitions, and the modules that are loaded with it."""

    name: str
    definitions: list[Definition]
    imports: set[str]


def read_tree(top: Path, package: str) -> dict[str, Module]:
    """Read every module of a package below a folder."""
    found: dict[str, Module] = {}
    for path in sorted((top / package).rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = read_module(name, path)
    return found


@cache
def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a text, read once for everybody who asks."""
    return ast.parse(text)


def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return parsed(path.read_text(encoding="utf-8"))


def every_node(top: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, in no order: four million of them, so not by `ast.walk`.

    Without the marks for reading and writing a name, which are a quarter of all.
    """
    waiting = [top]
    while waiting:
        node = waiting.pop()
        yield node
        for name in _fields_of(type(node)):
            value = getattr(node, name, None)
            if isinstance(value, list):
                waiting += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)


@cache
def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(name for name in kind.__match_args__ if name != "ctx")


def read_module(name: str, path: Path) -> Module:
    """Read one module."""
    tree = tree_of(path)
    reader = _Reader(name)
    reader.block(tree.body, None, "")
    found = [node for node in every_node(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    imports = {one for node in found for one in _imported(node)}
    renamed = {
        alias.asname: alias.name.rpartition(".")[2]
        for node in found
        for alias in node.names
        if alias.asname and alias.asname != alias.name
    }
    for one in reader.definitions:
        one.used |= {renamed[word] for word in one.used & renamed.keys()}
    return Module(name, reader.definitions, imports)


class _Reader:
    def __init__(self, module: str) -> None:
        self._module = module
        self._loose = Definition(module, "", 0, "")
        self.definitions = [self._loose]

    def block(self, body: list[ast.stmt], owner: Definition | None, prefix: str) -> None:
        for one in body:
            if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self._define(one, owner, prefix)
            elif isinstance(one, ast.If | ast.Try):
                self.block([s for s in ast.iter_child_nodes(one) if isinstance(s, ast.stmt)],
                           owner, prefix)  # fmt: skip
                (owner or self._loose).used |= _mentioned([getattr(one, "test", None)])
                for handler in getattr(one, "handlers", ()):
                    self.block(handler.body, owner, prefix)
            elif not _is_export_list(one):
                (owner or self._loose).used |= _mentioned([one])

    def _define(
        self,
        one: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
        owner: Definition | None,
        prefix: str,
    ) -> None:
        qualified = f"{prefix}{one.name}"
        marks = {last_name(mark) for mark in one.decorator_list}
        made = Definition(
            self._module, qualified, one.lineno, one.name, owner=owner.qualified if owner else "",
            registered=bool(marks - PLAIN_DECORATORS),
        )  # fmt: skip
        self.definitions.append(made)
        if isinstance(one, ast.ClassDef):
            made.is_class = True
            made.bases = tuple(
                ast.unparse(base) if ast.unparse(base).startswith("asyncio.") else last_name(base)
                for base in one.bases
            )
            made.is_protocol = "Protocol" in made.bases
            made.used |= _mentioned([*one.decorator_list, *one.bases, *one.keywords])
            self.block(one.body, made, f"{qualified}.")
        else:
            made.used |= _mentioned([one], but=one.name)


def _mentioned(nodes: Sequence[ast.AST | None], but: str = "") -> set[str]:
    """Return all names and attributes in some code; a function that calls itself is no caller."""
    found: set[str] = set()
    for top in nodes:
        for node in every_node(top) if top is not None else ():
            if isinstance(node, ast.Name):
                found |= {node.id} - {but}
            elif isinstance(node, ast.Attribute):
                if node.attr != but or last_name(node.value) not in {"self", "cls"}:
                    found.add(node.attr)
            elif isinstance(node, ast.MatchClass):
                found |= {*node.kwd_attrs, last_name(node.cls)}
            elif isinstance(node, ast.Call) and last_name(node.func) in {"getattr", "attrgetter"}:
                found |= {
                    arg.value
                    for arg in node.args
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                }
    return found


def _is_export_list(one: ast.stmt) -> bool:
    targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def last_name(node: ast.AST | None) -> str:
    """Return `c` of `a.b.c`, `a.b.c(…)` and `a.b.c[…]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
