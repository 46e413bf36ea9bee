"""Where and what things are: definition, references, hover, symbols."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.positions import (
    SourceText,
    Spot,
    TextSpan,
    from_uri,
    position_numbers,
    range_ends,
)
from kaged.toolbox.lsp.question import LspCall, places_in
from kaged.toolbox.lsp.server import LspServer
from kaged.tools import InvalidToolParams

_METHODS: Final = {
    "definition": ("definitionProvider", "textDocument/definition"),
    "type_definition": ("typeDefinitionProvider", "textDocument/typeDefinition"),
    "implementation": ("implementationProvider", "textDocument/implementation"),
}
_REFERENCES: Final = "textDocument/references"
_RETRIES: Final = 2
_RETRY_S: Final = 0.25
_FENCE: Final = re.compile(r"```[^\n]*\n(?P<code>.*?)\n?```", re.DOTALL)
_RULE: Final = re.compile(r"^\s*(?:---+|\*\*\*+)\s*$", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
MAX_CHARS: Final = 20_000
_NOTHING: Final[JsonValue] = {"content": None, "documentation": None, "range": None}
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


async def find_targets(question: LspCall) -> JsonValue:
    """Answer definition, type_definition or implementation."""
    bridge = question.bridge
    provider, method = _METHODS[question.text("action")]
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        if not ready.server.capabilities.offers(provider, method):
            return {"definitions": []}
        answer = await bridge.ask(ready.server, method, question.document(ready))
        return {"definitions": await question.show_all(ready.server, places_in(answer))}


async def find_references(question: LspCall) -> JsonValue:
    """Answer references, once the server knows the whole project."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        if not ready.server.capabilities.offers("referencesProvider", _REFERENCES):
            return {"references": [], "count": 0}
        declaration = question.call.args.get("include_declaration") is True
        params = question.document(ready)
        params["context"] = {"includeDeclaration": declaration}
        indexed = await bridge.indexed(ready.server)
        places = places_in(await bridge.ask(ready.server, _REFERENCES, params))
        for _ in range(_RETRIES):
            # A server that still reads may know no more than the line it was asked about.
            if len(places) > 1 or ready.server.loading.settled_long_ago:
                break
            await asyncio.sleep(_RETRY_S)
            places = places_in(await bridge.ask(ready.server, _REFERENCES, params))
        found = await question.show_all(ready.server, places)
    result: JsonObject = {"references": found, "count": len(found)}
    if not indexed:
        result["indexing"] = True
    return result


async def describe_symbol(question: LspCall) -> JsonValue:
    """Answer hover."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        if not ready.server.capabilities.offers("hoverProvider", "textDocument/hover"):
            raise InvalidToolParams.of_field("action", "unsupported by server")
        spot = question.spot(ready.file.source)
        answer = await bridge.ask(ready.server, "textDocument/hover", question.document(ready))
        if not isinstance(answer, dict):
            return _NOTHING
        content, documentation = split_markup(markup_text(answer.get("contents")))
        if content is None:
            return _NOTHING
        try:
            span = ready.file.source.span_from_server(answer.get("range"), ready.server.encoding)
        except TypeError:
            span = word_at(ready.file.source, spot)
    return {"content": content, "documentation": documentation, "range": span.as_json()}


def markup_text(contents: JsonValue) -> str:
    """Join MarkupContent, MarkedString and lists of them into one Markdown text."""
    match contents:
        case str():
            return contents
        case {"language": str(language), "value": str(value)}:
            return f"```{language}\n{value}\n```"
        case {"value": str(value)}:
            return value
        case list():
            return "\n\n".join(filter(None, map(markup_text, contents)))
        case _:
            return ""


def split_markup(text: str) -> tuple[str | None, str | None]:
    """Return the signature (the first code block, or paragraph) and the rest."""
    text = text.strip()[:MAX_CHARS]
    if not text:
        return None, None
    fence = _FENCE.search(text)
    if fence is not None:
        content, rest = fence["code"], text[: fence.start()] + text[fence.end() :]
    else:
        content, _, rest = text.partition("\n\n")
    rest = _RULE.sub("", rest).strip()
    return content.strip(), rest or None


def word_at(source: SourceText, spot: Spot) -> TextSpan:
    """Return the word at a position, for servers that name no range."""
    for found in _WORD.finditer(source.line(spot.line)):
        if found.start() <= spot.character <= found.end():
            return TextSpan(Spot(spot.line, found.start()), Spot(spot.line, found.end()))
    return TextSpan(spot, spot)


async def list_symbols(question: LspCall) -> JsonValue:
    """Answer symbols for a document or the whole workspace."""
    if question.text("scope") == "workspace":
        return await _workspace(question)
    bridge = question.bridge
    found: list[tuple[Spot, JsonObject]] = []
    async with bridge.ready(question.path, question.session_id, shared=True) as ready:
        if not ready.server.capabilities.offers("documentSymbolProvider", _DOCUMENT):
            return _limited(question, [])
        answer = await bridge.ask(
            ready.server, _DOCUMENT, {"textDocument": {"uri": ready.file.uri}}
        )
        for symbol in _flat(answer):
            try:
                start = ready.file.source.from_server(_start(symbol), ready.server.encoding)
            except TypeError:
                continue
            shown: JsonObject = {
                "name": str(symbol.get("name", "")),
                "kind": kind_word(symbol.get("kind")),
                "path": question.path.relative,
                **start.as_json(),
            }
            found.append((start, shown))
    # TypeScript's server tells the members of a file by name.
    found.sort(key=lambda one: (one[0].line, one[0].character))
    return _limited(question, [shown for _, shown in found])


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
    """Walk a tree of symbols as it was told; a flat list is a tree without branches."""
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
