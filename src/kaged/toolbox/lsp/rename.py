"""Renaming a symbol or a file everywhere at once: checked whole, then done whole or not at all."""

from __future__ import annotations

import os
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.lsp.edits import EditPlan, apply_edits, located, parse_workspace_edit
from kaged.toolbox.lsp.errors import LspRequestFailed, LspServerNotFound, RenameNotPossible
from kaged.toolbox.lsp.filesync import decoded
from kaged.toolbox.lsp.importers import require_not_imported
from kaged.toolbox.lsp.positions import Encoding, SourceText, to_uri
from kaged.toolbox.lsp.question import LspCall
from kaged.toolbox.lsp.rename_check import require_complete
from kaged.toolbox.lsp.server import LspServer
from kaged.tools import InvalidToolParams
from kaged.tools.errors import ToolRefused
from kaged.workspace import PlannedWrite, ProjectPath, Workspace, Written
from kaged.workspace.errors import FileExists

_BOM: Final = b"\xef\xbb\xbf"
_WILL_RENAME: Final = "workspace/willRenameFiles"


@dataclass(frozen=True, slots=True)
class _Changed:
    """One file's new content, with how many places of it changed."""

    plan: PlannedWrite
    edits: int


async def rename_symbol(question: LspCall) -> JsonValue:
    """Answer rename."""
    async with question.bridge.ready(question.path, question.session_id) as ready:
        server = ready.server
        if not server.capabilities.offers("renameProvider", "textDocument/rename"):
            raise InvalidToolParams.of_field("action", "unsupported by server")
        await _require_indexed(question, server)
        where = question.document(ready)
        await _prepare(question, server, where)
        where["newName"] = question.text("new_name")
        plan = parse_workspace_edit(await _ask(question, server, "textDocument/rename", where))
        if plan.moved:
            raise RenameNotPossible("this rename would move files; use rename_file for that")
        if not plan.files and not plan.unreadable:
            raise RenameNotPossible("there is nothing to rename here")
        targets = _require_writable(question, plan)
        unknown = await require_complete(question, ready, where, plan, targets)
        result = _result(await _carry_out(question, server, plan, targets, move=None))
        return {**result, "unresolved": unknown} if unknown else result


async def rename_file(question: LspCall) -> JsonValue:
    """Answer rename_file. A file without a server just moves, unless Python files import it."""
    bridge, old = question.bridge, question.path
    bridge.require_file(old)
    new = question.call.workspace.resolve(question.text("new_path"))
    refused = [one.relative for one in (old, new) if not question.call.writable(one.resolved)]
    if refused:
        raise _exceeds(refused)
    _require_free(new)
    try:
        async with bridge.ready(old, question.session_id) as ready:
            changed = await _move(question, ready.server, old, new)
    except LspServerNotFound:
        await require_not_imported(question, old)
        changed = await _carry_out(question, None, EditPlan(), {}, move=(old, new))
    return {"old_path": old.relative, "new_path": new.relative, **_result(changed)}


async def _move(
    question: LspCall, server: LspServer, old: ProjectPath, new: ProjectPath
) -> list[_Changed]:
    """Move a file together with the edits its server asks for elsewhere, and tell the server."""
    plan = EditPlan()
    files: list[JsonValue] = [{"oldUri": to_uri(old.resolved), "newUri": to_uri(new.resolved)}]
    if server.capabilities.file_renames:
        await _require_indexed(question, server)
        asked: JsonObject = {"files": files}
        plan = parse_workspace_edit(await _ask(question, server, _WILL_RENAME, asked))
    targets = _require_writable(question, plan)
    if not plan.files:
        await require_not_imported(question, old)
    changed = await _carry_out(question, server, plan, targets, move=(old, new))
    await question.bridge.sync.open(server, new)
    server.notify("workspace/didRenameFiles", {"files": files})
    return changed


async def _ask(question: LspCall, server: LspServer, method: str, params: JsonObject) -> JsonValue:
    try:
        return await question.bridge.ask(server, method, params)
    except LspRequestFailed as error:
        raise RenameNotPossible(error.message, detail=error.detail) from error


async def _require_indexed(question: LspCall, server: LspServer) -> None:
    if not await question.bridge.indexed(server):
        raise RenameNotPossible(
            f"the {server.language} language server is still reading the project; a rename now "
            "would miss files",
            fix="try again in a moment",
            detail={"indexing": True},
        )


async def _prepare(question: LspCall, server: LspServer, where: JsonObject) -> None:
    if server.capabilities.option("renameProvider", "prepareProvider") is not True:
        return
    answer = await _ask(question, server, "textDocument/prepareRename", where)
    if answer is None:
        raise RenameNotPossible(
            "what is at this position cannot be renamed", fix="point at a name that is declared"
        )


def _require_writable(question: LspCall, plan: EditPlan) -> dict[str, ProjectPath]:
    """Return the project's paths of all files of a plan, if the caller may write every one."""
    targets: dict[str, ProjectPath] = {}
    refused: list[str] = list(plan.unreadable)
    for path in plan.files:
        found = question.bridge.project_path(path)
        if found is not None and question.call.writable(found.resolved):
            targets[path] = found
        else:
            refused.append(str(question.hidden(path, 1)["path"]))
    if refused:
        raise _exceeds(refused)
    return targets


def _require_free(path: ProjectPath) -> None:
    # A first look, so that no server is asked in vain; the writer makes sure of it.
    if os.path.lexists(path.resolved):
        raise FileExists(path.relative)


def _exceeds(paths: list[str]) -> ToolRefused:
    listed: list[JsonValue] = [*sorted(paths)]
    return ToolRefused(
        "the rename would change files that you may not write; nothing was changed: "
        + ", ".join(sorted(paths)[:20]),
        code="rename_scope_exceeds_cage",
        fix="ask for a cage that may write them, or let the primary agent rename",
        detail={"paths": listed},
    )


async def _carry_out(
    question: LspCall,
    server: LspServer | None,
    plan: EditPlan,
    targets: dict[str, ProjectPath],
    *,
    move: tuple[ProjectPath, ProjectPath] | None,
) -> list[_Changed]:
    """Write all files or none, and tell everybody who should know."""
    call, workspace = question.call, question.bridge.workspace
    encoding = Encoding.UTF16 if server is None else server.encoding
    shown = {} if server is None else {path: one.source.text for path, one in server.files.items()}
    changed: list[_Changed] = []

    def work() -> tuple[Written, ...]:
        changed.extend(_planned(workspace, plan, targets, encoding, shown, move))
        return workspace.write_all(one.plan for one in changed)

    def then(written: tuple[Written, ...]) -> None:
        workspace.settle(call.author, written, [one.plan.data for one in changed])
        for one in changed:
            _record(question, one, move)

    paths = [*targets.values(), *(move or ())]
    async with workspace.locks.mutating(paths):
        await workspace.threads.finish(work, then)
    return changed


def _planned(
    workspace: Workspace,
    plan: EditPlan,
    targets: dict[str, ProjectPath],
    encoding: Encoding,
    shown: dict[str, str],
    move: tuple[ProjectPath, ProjectPath] | None,
) -> list[_Changed]:
    """Work out every new content from what is on disk now. Runs in a thread."""
    planned: list[_Changed] = []
    moved_data: bytes | None = None
    moved_edits = 0
    for path, edits in plan.files.items():
        target = targets[path]
        content = workspace.read_bytes(target)
        text = decoded(content.data)
        if text is None:
            raise RenameNotPossible(f"{target.relative} is no text that could be edited")
        if shown.get(target.resolved, text) != text:
            raise RenameNotPossible(
                f"{target.relative} was changed meanwhile; nothing was changed", fix="try again"
            )
        source = SourceText(text)
        found = located(source, edits, encoding)
        mark = _BOM if content.data.startswith(_BOM) else b""
        data = mark + apply_edits(source, found).encode("utf-8", errors="surrogateescape")
        if move is not None and target.resolved == move[0].resolved:
            moved_data, moved_edits = data, len(found)
            continue
        planned.append(_Changed(PlannedWrite(target, data, content.sha256), len(found)))
    if move is not None:
        old, new = move
        content = workspace.read_bytes(old)
        data = content.data if moved_data is None else moved_data
        made = PlannedWrite(new, data, create_only=True, mode=content.mode)
        planned.append(_Changed(made, moved_edits))
        planned.append(_Changed(PlannedWrite(old, None, content.sha256), 0))
    return planned


def _record(question: LspCall, one: _Changed, move: tuple[ProjectPath, ProjectPath] | None) -> None:
    call, path = question.call, one.plan.path
    if move is not None and path.resolved == move[1].resolved:
        call.emit("file.written", path=path.relative, bytes=len(one.plan.data or b""))
    if one.edits:
        call.emit("file.edited", path=path.relative, replacements=one.edits)


def _result(changed: list[_Changed]) -> JsonObject:
    edited: list[JsonValue] = [
        {"path": one.plan.path.relative, "edits": one.edits} for one in changed if one.edits
    ]
    return {
        "changes": edited,
        "total_edits": sum(one.edits for one in changed),
        "files_changed": len(edited),
    }
