"""The servers themselves: status, reload, capabilities and raw requests."""

from __future__ import annotations

from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.errors import LspServerNotFound
from kaged.toolbox.lsp.question import LspCall
from kaged.tools import InvalidToolParams, ToolCapabilityRefused

_NOT_RAW: Final = frozenset(
    {
        "initialize",
        "initialized",
        "shutdown",
        "exit",
        "textDocument/didOpen",
        "textDocument/didChange",
        "textDocument/didClose",
        "textDocument/didSave",
    }
)


async def show_status(question: LspCall) -> JsonValue:
    """Answer status; never starts a server."""
    language = _asked(question)
    pool = question.bridge.pool
    names = pool.known() if language is None else (language,)
    servers: list[JsonValue] = [pool.status(one) for one in names]
    return {"servers": servers, "count": len(servers)}


async def reload_servers(question: LspCall) -> JsonValue:
    """Answer reload."""
    language = _asked(question)
    pool = question.bridge.pool
    languages = pool.used() if language is None else (language,)
    reloaded = await pool.reload(languages, question.session_id)
    for one in languages:
        server = pool.running(one)
        if server is not None:
            await question.bridge.sync.refresh(server)
    names: list[JsonValue] = [*reloaded]
    return {"reloaded": names, "count": len(names)}


async def show_capabilities(question: LspCall) -> JsonValue:
    """Answer capabilities, starting the server if need be."""
    language = _required(question)
    async with question.bridge.server(language, question.session_id) as server:
        return {
            "language": language,
            "server_info": server.capabilities.server_info,
            "capabilities": server.capabilities.raw,
            "position_encoding": server.encoding.value,
        }


async def raw_request(question: LspCall) -> JsonValue:
    """Answer request: for callers without a cage, because raw answers cannot be filtered."""
    if question.caged:
        raise ToolCapabilityRefused(
            "raw language-server requests are for agents without a cage",
            fix="use the other actions of code.lsp",
            detail="code.lsp request",
        )
    method = question.text("method")
    if method in _NOT_RAW:
        raise InvalidToolParams.of_field("method", f"{method} is reserved for the daemon")
    language = _required(question)
    params = question.call.args.get("params")
    given = cast("JsonObject", {} if params is None else params)
    async with question.bridge.server(language, question.session_id) as server:
        if question.call.paths:
            await question.bridge.sync.open(server, question.path)
        return {"method": method, "result": await question.bridge.ask(server, method, given)}


def _required(question: LspCall) -> str:
    language = _asked(question)
    if language is None:
        raise InvalidToolParams.of_field("path", "name a path or a language to say which server")
    return language


def _asked(question: LspCall) -> str | None:
    """Return which language was asked for, by name or by a path; None when neither was given."""
    named = question.text("language")
    if named:
        if named not in question.bridge.pool.known():
            raise LspServerNotFound.unconfigured(named)
        return named
    return question.bridge.workspace_language(question.path) if question.call.paths else None
