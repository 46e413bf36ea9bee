"""What a file or a project declares: symbols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.positions import position_numbers, range_ends
from kaged.toolbox.lsp.question import LspCall
from kaged.toolbox.lsp.uris import from_uri

if TYPE_CHECKING:
    from kaged.toolbox.lsp.server import LspServer

_KINDS: Final = (
    *("file", "module", "namespace", "package", "class", "method", "property", "field"),
    *("constructor", "enum", "interface", "function", "variable", "constant", "string", "number"),
    *("boolean", "array", "object", "key", "null", "enum_member", "struct", "event", "operator"),
    "type_parameter",
)
"""SymbolKind of the protocol, from 1."""
MAX_DEPTH: Final = 100
_DOCUMENT: Final = "textDocument/documentSymbol"
_PROJECT: Final = "workspace/symbol"
_TOP: Final[JsonObject] = {"line": 0, "character": 0}


async def list_symbols(question: LspCall) -> JsonValue:
    """Answer symbols for a document or the whole workspace."""
    if question.text("scope") == "workspace":
        return await _workspace(question)
    bridge = question.bridge
    found: list[JsonValue] = []
    async with bridge.ready(question.path, question.session_id) as ready:
        if not ready.server.capabilities.offers("documentSymbolProvider", _DOCUMENT):
            return _limited(question, found)
        answer = await bridge.ask(
            ready.server, _DOCUMENT, {"textDocument": {"uri": ready.file.uri}}
        )
        for symbol in _flat(answer):
            try:
                start = ready.file.source.from_server(_start(symbol), ready.server.encoding)
            except TypeError:
                continue
            found.append(
                {
                    "name": str(symbol.get("name", "")),
                    "kind": kind_word(symbol.get("kind")),
                    "path": question.path.relative,
                    **start.as_json(),
                }
            )
    return _limited(question, found)


async def _workspace(question: LspCall) -> JsonValue:
    bridge = question.bridge
    language = bridge.workspace_language(question.path)
    async with bridge.server(language, question.session_id) as server:
        if not server.capabilities.offers("workspaceSymbolProvider", _PROJECT):
            return _limited(question, [])
        indexed = await bridge.indexed(server)
        answer = await bridge.ask(server, _PROJECT, {"query": question.text("query")})
        found: list[JsonValue] = []
        for symbol in answer if isinstance(answer, list) else []:
            shown = None if not isinstance(symbol, dict) else await _show(question, server, symbol)
            if shown is not None:
                found.append(shown)
    result = _limited(question, found)
    if not indexed:
        result["indexing"] = True
    return result


async def _show(question: LspCall, server: LspServer, symbol: JsonObject) -> JsonObject | None:
    location = symbol.get("location")
    path = from_uri(location.get("uri")) if isinstance(location, dict) else None
    if path is None:
        return None
    try:
        start = range_ends(cast("JsonObject", location)["range"])[0]
        line, _ = position_numbers(start)
    except (KeyError, TypeError):
        start, line = _TOP, 0
    seen = question.inside(path)
    if seen is None:
        return question.hidden(path, line + 1)
    source = await question.source(server, seen)
    character = 0 if source is None else source.from_server(start, server.encoding).character
    return {
        "name": str(symbol.get("name", "")),
        "kind": kind_word(symbol.get("kind")),
        "path": seen.relative,
        "line": line + 1,
        "character": character,
    }


def kind_word(kind: JsonValue) -> str:
    """Return the lowercase word for a kind of symbol."""
    known = type(kind) is int and 1 <= kind <= len(_KINDS)
    return _KINDS[cast("int", kind) - 1] if known else "unknown"


def _flat(answer: JsonValue, depth: int = 0) -> Iterator[JsonObject]:
    """Walk a tree of symbols in source order; a flat list is a tree without branches."""
    if not isinstance(answer, list) or depth > MAX_DEPTH:
        return
    for symbol in answer:
        if isinstance(symbol, dict):
            yield symbol
            yield from _flat(symbol.get("children"), depth + 1)


def _start(symbol: JsonObject) -> JsonValue:
    location = symbol.get("location")
    inner = location.get("range") if isinstance(location, dict) else None
    return range_ends(symbol.get("selectionRange") or symbol.get("range") or inner)[0]


def _limited(question: LspCall, found: list[JsonValue]) -> JsonObject:
    limit = cast("int", question.call.args.get("limit", 50))
    result: JsonObject = {"symbols": found[:limit], "count": len(found[:limit])}
    if len(found) > limit:
        result["total"] = len(found)
    return result
