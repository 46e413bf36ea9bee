"""What could be done about it: code actions, as information only. No file is ever changed here."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.toolbox.lsp.applicable import FindableEdit, applicable
from kaged.toolbox.lsp.bridge import Ready
from kaged.toolbox.lsp.diagnostics import problems_of
from kaged.toolbox.lsp.edits import RawEdit, located, parse_workspace_edit
from kaged.toolbox.lsp.errors import LspRequestFailed, RenameNotPossible
from kaged.toolbox.lsp.positions import Spot, position_numbers, range_ends
from kaged.toolbox.lsp.question import LspCall
from kaged.toolbox.lsp.server import LspServer

MAX_ACTIONS: Final = 100


async def suggest(question: LspCall) -> JsonValue:
    """Answer code_actions."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id) as ready:
        server, file = ready.server, ready.file
        if not server.capabilities.offers("codeActionProvider", "textDocument/codeAction"):
            return {"actions": [], "count": 0}
        spot = question.spot(file.source)
        position = file.source.to_server(spot, server.encoding)
        problems: list[JsonValue] = []
        if question.call.args.get("include_diagnostics") is not False:
            found = await problems_of(bridge, server, file)
            problems = [item for item in found.items if _covers(item, ready, spot)]
        answer = await bridge.ask(
            server,
            "textDocument/codeAction",
            {
                "textDocument": {"uri": file.uri},
                "range": {"start": position, "end": position},
                "context": {"diagnostics": problems, "triggerKind": 1},
            },
        )
        offered = answer if isinstance(answer, list) else []
        actions: list[JsonValue] = [
            await _describe(question, server, action)
            for action in offered[:MAX_ACTIONS]
            if isinstance(action, dict)
        ]
    return {"actions": actions, "count": len(actions)}


async def _describe(question: LspCall, server: LspServer, action: JsonObject) -> JsonObject:
    edit = action.get("edit")
    lazy = server.capabilities.option("codeActionProvider", "resolveProvider") is True
    if edit is None and lazy and not isinstance(action.get("command"), str):
        try:
            resolved = await server.request("codeAction/resolve", action, question.bridge.limit_s)
        except LspRequestFailed:
            resolved = None  # an action without its edit is still worth showing
        edit = resolved.get("edit") if isinstance(resolved, dict) else None
    return {
        "title": str(action.get("title", "")),
        "kind": action["kind"] if isinstance(action.get("kind"), str) else None,
        "preferred": action.get("isPreferred") is True,
        "edits": await _edits(question, server, edit),
    }


async def _edits(question: LspCall, server: LspServer, edit: JsonValue) -> list[JsonValue]:
    try:
        plan = parse_workspace_edit(edit)
    except RenameNotPossible:
        return []  # file operations and the like: nothing that edit.text could do
    shown: list[JsonValue] = []
    for path, edits in plan.files.items():
        seen = question.inside(path)
        source = None if seen is None else await question.source(server, seen)
        if seen is None or source is None:
            shown += [question.hidden(path, _line(one)) for one in edits]
            continue
        try:
            found = located(source, edits, server.encoding)
        except KagedError:
            continue
        made = applicable(source.text, found)
        if made is None:
            # Shown as the server has them, for somebody who reads them.
            made = [
                FindableEdit(one.start, source.text[one.start : one.end], one.new_text)
                for one in found
            ]
        for one in made:
            line = source.text.count("\n", 0, one.start) + 1
            shown.append({"path": seen.relative, "line": line, "old": one.old, "new": one.new})
    return shown


def _covers(item: JsonObject, ready: Ready, spot: Spot) -> bool:
    try:
        span = ready.file.source.span_from_server(item.get("range"), ready.server.encoding)
    except TypeError:
        return False
    return span.start <= spot <= span.end or span.start.line == spot.line == span.end.line


def _line(edit: RawEdit) -> int:
    try:
        return position_numbers(range_ends(edit.range)[0])[0] + 1
    except TypeError:
        return 1
