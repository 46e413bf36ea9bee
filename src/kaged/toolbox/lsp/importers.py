"""Which Python files import a file that is about to move, where no server changes them with it."""

from __future__ import annotations

import ast
import posixpath
import warnings
from collections.abc import Iterator, Sequence
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.errors import RenameNotPossible
from kaged.toolbox.lsp.filesync import decoded
from kaged.toolbox.lsp.question import PREVIEW_CHARS, LspCall
from kaged.workspace import PathRefused, ProjectPath
from kaged.workspace.errors import FileMissing, FileTooLarge, FileUnreadable, WrongKind

MAX_PARSED: Final = 300
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_SHOWN: Final = 20
_SUFFIX: Final = ".py"
_PACKAGE: Final = "/__init__"


async def require_not_imported(question: LspCall, old: ProjectPath) -> None:
    """Raise RenameNotPossible when other files import a Python file that moves without them."""
    if not old.resolved.endswith(_SUFFIX):
        return
    bridge = question.bridge
    module = old.resolved.removesuffix(_SUFFIX).removesuffix(_PACKAGE)
    listed = await bridge.files_with(posixpath.basename(module))
    others = sorted(one for one in listed if one.endswith(_SUFFIX) and one != old.resolved)
    root = bridge.workspace.root
    found = await bridge.workspace.threads.run(
        lambda: _importers(question, root, module, others[:MAX_PARSED])
    )
    if found:
        names = ", ".join(str(one["path"]) for one in found)
        importers: list[JsonValue] = [*found]
        raise RenameNotPossible(
            f"no language server changes the imports of {old.relative}, and it is imported by "
            f"{names}; nothing was changed",
            fix="move it with shell.bash and change these imports with edit.text",
            detail={"imported_by": importers},
        )


def _importers(question: LspCall, root: str, module: str, paths: Sequence[str]) -> list[JsonObject]:
    """Return the first import of each file that imports a module. Runs in a thread."""
    found: list[JsonObject] = []
    for path in paths:
        seen = question.bridge.project_path(path)
        text = None if seen is None else _text_of(question, seen)
        line = None if text is None else import_line(text, path, root, module)
        if seen is None or text is None or line is None:
            continue
        if question.inside(path) is None:
            found.append(question.hidden(path, line))
        else:
            preview = text.splitlines()[line - 1].strip()[:PREVIEW_CHARS]
            shown: JsonObject = {"path": seen.relative, "line": line, "preview": preview}
            found.append(shown)
        if len(found) >= MAX_SHOWN:
            break
    return found


def _text_of(question: LspCall, path: ProjectPath) -> str | None:
    try:
        return decoded(question.bridge.workspace.read_bytes(path, MAX_FILE_BYTES).data)
    except (FileMissing, FileTooLarge, FileUnreadable, PathRefused, WrongKind):
        return None


def import_line(text: str, path: str, root: str, module: str) -> int | None:
    """Return the line on which a file imports a module, named by its path without `.py`.

    An absolute import is taken to mean it when its last parts are the module's; a single part
    only if both lie in one folder, or the module in the root.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python says of the file is for its author
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    folder = posixpath.dirname(path)
    parts = module.removeprefix(root.rstrip("/")).strip("/").split("/")
    names = {".".join(parts[index:]) for index in range(len(parts) - 1)}
    if posixpath.dirname(module) in {folder, root}:
        names.add(parts[-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            hit = any(_leads_to(alias.name, names) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            hit = module in _relative(node, folder)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            hit = _leads_to(base, names) or any(
                f"{base}.{alias.name}" in names for alias in node.names
            )
        else:
            continue
        if hit:
            return node.lineno
    return None


def _leads_to(name: str, names: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in names)


def _relative(node: ast.ImportFrom, folder: str) -> Iterator[str]:
    """Yield the paths that a relative import may mean."""
    for _ in range(node.level - 1):
        folder = posixpath.dirname(folder)
    base = posixpath.join(folder, *(node.module or "").split("."))
    yield base.rstrip("/")
    for alias in node.names:
        yield posixpath.join(base, alias.name)
