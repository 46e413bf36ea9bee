"""Where things are: definition, type_definition, implementation, references."""

from __future__ import annotations

import asyncio
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.question import LspCall, places_in

_METHODS: Final = {
    "definition": ("definitionProvider", "textDocument/definition"),
    "type_definition": ("typeDefinitionProvider", "textDocument/typeDefinition"),
    "implementation": ("implementationProvider", "textDocument/implementation"),
}
_REFERENCES: Final = "textDocument/references"
_RETRIES: Final = 2
_RETRY_S: Final = 0.25


async def find_targets(question: LspCall) -> JsonValue:
    """Answer definition, type_definition or implementation."""
    bridge = question.bridge
    provider, method = _METHODS[question.text("action")]
    async with bridge.ready(question.path, question.session_id) as ready:
        if not ready.server.capabilities.offers(provider, method):
            return {"definitions": []}
        answer = await bridge.ask(ready.server, method, question.document(ready))
        return {"definitions": await question.show_all(ready.server, places_in(answer))}


async def find_references(question: LspCall) -> JsonValue:
    """Answer references, once the server knows the whole project."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id) as ready:
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
