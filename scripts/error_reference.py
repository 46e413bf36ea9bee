"""The list of all error codes for `docs/reference/error-codes.md`, made from the one table.

It also finds where `src` raises which code, so that a test can compare that with the table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from kaged.base.error_codes import ERROR_CODES

BEGIN: Final = "<!-- made from kaged.base.error_codes: make docs -->"
END: Final = "<!-- end of the made part -->"

# Answers that the HTTP edge gives before there is a request, and so an error, to fail.
EDGE_ONLY: Final = ("headers_too_large", "method_not_allowed", "too_many_connections")
EDGE: Final = "serve"
ROOT_CLASS: Final = "KagedError"
Node: TypeAlias = ast.ClassDef | ast.Call


def raised(source: Path) -> dict[str, set[str]]:
    """Return per code the packages below `source` that raise it or declare an error with it."""
    nodes = {
        path.relative_to(source).parts[0]: _nodes(path)
        for path in sorted(source.iterdir())
        if path.is_dir()
    }
    kinds = _error_names([node for some in nodes.values() for node in some])
    found: dict[str, set[str]] = {code: {EDGE} for code in EDGE_ONLY}
    for package, some in nodes.items():
        for code in _codes(some, kinds):
            found.setdefault(code, set()).add(package)
    return found


def render(where: Mapping[str, set[str]]) -> str:
    """Write the made part of the page."""
    rows = [
        f"| `{code}` | {status} | {', '.join(sorted(where.get(code, ())))} | {meaning} |"
        for code, (status, meaning) in sorted(ERROR_CODES.items())
    ]
    head = ["| Code | HTTP | Raised in | Means |", "|---|---|---|---|"]
    return "\n".join([BEGIN, "", *head, *rows, "", END])


def rewrite(page: Path, source: Path) -> None:
    """Put the made part into a page, in place of the old one."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + render(raised(source)) + rest.partition(END)[2], encoding="utf-8")


def _nodes(package: Path) -> list[Node]:
    """Return the classes and the calls of a package."""
    return [
        node
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.Call)
    ]


def _error_names(nodes: list[Node]) -> set[str]:
    """Return the names of `KagedError` and of every class below it."""
    bases: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases.setdefault(node.name, set()).update(map(_name, node.bases))
    names = {ROOT_CLASS}
    while more := {name for name, above in bases.items() if above & names} - names:
        names |= more
    return names


def _codes(nodes: list[Node], kinds: set[str]) -> Iterator[str]:
    """Find the codes of declared error classes, and those given where an error is made."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            if node.name in kinds:
                yield from _texts(_declared(node))
        elif _name(node.func) in kinds:
            for given in node.keywords:
                if given.arg == "code":
                    yield from _texts(given.value)


def _declared(kind: ast.ClassDef) -> ast.expr | None:
    """Return what a class says its `code` is."""
    for line in kind.body:
        if isinstance(line, ast.AnnAssign | ast.Assign):
            target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
            if _name(target) == "code":
                return line.value
    return None


def _texts(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)


def _name(node: ast.expr) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", "")
