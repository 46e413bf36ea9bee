"""Who calls whom, how a file would be formatted, what its words are: typed, and filtered as all is.

Nothing is changed here: the edits of a formatter are told, and `edit.text` carries them out.
"""

from __future__ import annotations

from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.bridge import Ready
from kaged.toolbox.lsp.edits import located, parse_workspace_edit
from kaged.toolbox.lsp.lookup import kind_word
from kaged.toolbox.lsp.positions import SourceText, from_uri, position_numbers, range_ends
from kaged.toolbox.lsp.question import LspCall
from kaged.toolbox.lsp.server import LspServer
from kaged.tools import InvalidToolParams

MAX_CALLS: Final = 500
MAX_SITES: Final = 100
MAX_TOKENS: Final = 100_000
_PREPARE: Final = "textDocument/prepareCallHierarchy"
_FORMAT: Final = "textDocument/formatting"
_TOKENS: Final = "textDocument/semanticTokens/full"
_FIELDS: Final = 5  # numbers per token: line, start, length, type, modifiers
# direction → method, the field that names the other function
_DIRECTIONS: Final = {
    "incoming": ("callHierarchy/incomingCalls", "from"),
    "outgoing": ("callHierarchy/outgoingCalls", "to"),
}


async def show_calls(question: LspCall) -> JsonValue:
    """Answer call_hierarchy: what calls the function at a position, or what it calls."""
    bridge = question.bridge
    direction = question.text("direction") or "incoming"
    method, other = _DIRECTIONS[direction]
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        server = ready.server
        if not server.capabilities.offers("callHierarchyProvider", _PREPARE):
            raise InvalidToolParams.of_field("action", "unsupported by server")
        await bridge.indexed(server)
        items = _objects(await bridge.ask(server, _PREPARE, question.document(ready)))
        if not items:
            return {"item": None, "direction": direction, "calls": [], "count": 0}
        calls: list[JsonValue] = []
        for call in _objects(await bridge.ask(server, method, {"item": items[0]}))[:MAX_CALLS]:
            there = call.get(other)
            if not isinstance(there, dict):
                continue
            shown = await _item(question, server, there)
            if shown is None:
                continue
            # The places of the calls are in the calling file, whichever of the two that is.
            caller = there if direction == "incoming" else items[0]
            shown["sites"] = await _sites(question, server, caller, call.get("fromRanges"))
            calls.append(shown)
        item = await _item(question, server, items[0])
    return {"item": item, "direction": direction, "calls": calls, "count": len(calls)}


async def show_formatting(question: LspCall) -> JsonValue:
    """Answer format: the edits that a formatter would make; the file stays as it is."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        server, source = ready.server, ready.file.source
        if not server.capabilities.offers("documentFormattingProvider", _FORMAT):
            raise InvalidToolParams.of_field("action", "unsupported by server")
        size = cast("int", question.call.args.get("tab_size", 4))
        tabs = question.call.args.get("tabs") is True
        asked: JsonObject = {
            "textDocument": {"uri": ready.file.uri},
            "options": {"tabSize": size, "insertSpaces": not tabs},
        }
        answer = await bridge.ask(server, _FORMAT, asked)
        plan = parse_workspace_edit({"changes": {ready.file.uri: answer or []}})
        [edits] = plan.files.values()
        shown: list[JsonValue] = [
            {
                **one.spot.as_json(),
                "old": source.text[one.start : one.end],
                "new": one.new_text,
            }
            for one in located(source, edits, server.encoding)
            if source.text[one.start : one.end] != one.new_text
        ]
    return {"path": question.path.relative, "edits": shown, "count": len(shown)}


async def show_tokens(question: LspCall) -> JsonValue:
    """Answer semantic_tokens: what each word of a file is, as the server understands it."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        capabilities = ready.server.capabilities
        if not capabilities.offers("semanticTokensProvider", _TOKENS):
            raise InvalidToolParams.of_field("action", "unsupported by server")
        answer = await bridge.ask(ready.server, _TOKENS, {"textDocument": {"uri": ready.file.uri}})
        data = answer.get("data") if isinstance(answer, dict) else None
        tokens = _tokens(ready, data, capabilities.option("semanticTokensProvider", "legend"))
    limit = cast("int", question.call.args.get("limit", 50))
    kept: list[JsonValue] = [*tokens[:limit]]
    result: JsonObject = {"path": question.path.relative, "tokens": kept, "count": len(kept)}
    if len(tokens) > limit:
        result["total"] = len(tokens)
    return result


def _tokens(ready: Ready, data: JsonValue, legend: JsonValue) -> list[JsonObject]:
    """Decode the protocol's five numbers per token, each place counted from the one before."""
    numbers = data if isinstance(data, list) else []
    if not all(type(one) is int and one >= 0 for one in numbers):
        return []
    kinds, flags = _legend(legend, "tokenTypes"), _legend(legend, "tokenModifiers")
    source, encoding = ready.file.source, ready.server.encoding
    found: list[JsonObject] = []
    line = start = 0
    whole = len(numbers) - len(numbers) % _FIELDS
    for at in range(0, min(whole, MAX_TOKENS * _FIELDS), _FIELDS):
        down, right, length, kind, bits = cast("list[int]", numbers[at : at + _FIELDS])
        line, start = line + down, right if down else start + right
        if line >= source.line_count:
            break  # about another text than this one
        begin = source.from_server({"line": line, "character": start}, encoding)
        end = source.from_server({"line": line, "character": start + length}, encoding)
        modifiers: list[JsonValue] = [name for bit, name in enumerate(flags) if bits & (1 << bit)]
        found.append(
            {
                **begin.as_json(),
                "text": source.line(line + 1)[begin.character : end.character],
                "type": kinds[kind] if kind < len(kinds) else "unknown",
                "modifiers": modifiers,
            }
        )
    return found


async def _item(question: LspCall, server: LspServer, item: JsonObject) -> JsonObject | None:
    """Describe a function as far as the caller may see it; None when the server names no place."""
    path = from_uri(item.get("uri"))
    try:
        start, _ = range_ends(item.get("selectionRange") or item.get("range"))
        line, _ = position_numbers(start)
    except TypeError:
        return None
    if path is None:
        return None
    seen = question.inside(path)
    if seen is None:
        return question.hidden(path, line + 1)
    source = await question.source(server, seen)
    where: JsonObject = {"line": line + 1, "character": 0}
    if source is not None and line < source.line_count:
        where = source.from_server(start, server.encoding).as_json()
    return {
        "name": str(item.get("name", "")),
        "kind": kind_word(item.get("kind")),
        "path": seen.relative,
        **where,
    }


async def _sites(
    question: LspCall, server: LspServer, caller: JsonObject, ranges: JsonValue
) -> list[JsonValue]:
    """Return where in the calling file the calls stand; nothing of a file outside the cage."""
    path = from_uri(caller.get("uri"))
    seen = None if path is None else question.inside(path)
    source: SourceText | None = None if seen is None else await question.source(server, seen)
    if source is None or not isinstance(ranges, list):
        return []
    sites: list[JsonValue] = []
    for one in ranges[:MAX_SITES]:
        try:
            sites.append(source.from_server(range_ends(one)[0], server.encoding).as_json())
        except TypeError:
            continue
    return sites


def _objects(answer: JsonValue) -> list[JsonObject]:
    entries = answer if isinstance(answer, list) else []
    return [one for one in entries if isinstance(one, dict)]


def _legend(legend: JsonValue, name: str) -> list[str]:
    words = legend.get(name) if isinstance(legend, dict) else None
    return [str(one) for one in words] if isinstance(words, list) else []
