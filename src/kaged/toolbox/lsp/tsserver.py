"""tsserver asked for a file's problems: its language server only pushes, and pushes too little.

typescript-language-server sends the lists of syntax and of types one after the other, without a
version, and nothing at all when both are as empty as before. What is behind it can be asked.
"""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.errors import LspRequestFailed
from kaged.toolbox.lsp.handshake import Capabilities
from kaged.toolbox.lsp.server import LspServer, OpenFile

_COMMAND: Final = "typescript.tsserverRequest"
_KINDS: Final = (
    "syntacticDiagnosticsSync",
    "semanticDiagnosticsSync",
    "suggestionDiagnosticsSync",
)
_SEVERITIES: Final = {"error": 1, "warning": 2, "suggestion": 4}
_SOURCE: Final = "typescript"
MAX_ITEMS: Final = 10_000


def asks_tsserver(capabilities: Capabilities) -> bool:
    """Return whether a server passes questions on to a tsserver."""
    commands = capabilities.option("executeCommandProvider", "commands")
    return isinstance(commands, list) and _COMMAND in commands


async def tsserver_problems(
    server: LspServer, file: OpenFile, limit_s: float
) -> tuple[JsonObject, ...] | None:
    """Return all problems of a file as the protocol has them; None when tsserver cannot say.

    Raises LspTimeout and LspServerUnavailable.
    """
    found: list[JsonObject] = []
    for kind in _KINDS:
        params: JsonObject = {"command": _COMMAND, "arguments": [kind, {"file": file.uri}]}
        try:
            answer = await server.request("workspace/executeCommand", params, limit_s)
        except LspRequestFailed:
            return None
        body = answer.get("body") if isinstance(answer, dict) else None
        if not isinstance(body, list):
            return None
        found.extend(_problem(one) for one in body[:MAX_ITEMS] if isinstance(one, dict))
    return tuple(found)


def _problem(said: JsonObject) -> JsonObject:
    """Return one of tsserver's problems, whose lines and columns count from 1, as LSP has it."""
    return {
        "range": {"start": _position(said.get("start")), "end": _position(said.get("end"))},
        "severity": _SEVERITIES.get(str(said.get("category")), 1),
        "message": said.get("text", ""),
        "code": said.get("code"),
        "source": said.get("source", _SOURCE),
    }


def _position(said: JsonValue) -> JsonObject | None:
    line, offset = (said.get("line"), said.get("offset")) if isinstance(said, dict) else (0, 0)
    if type(line) is not int or type(offset) is not int or line < 1 or offset < 1:
        return None  # a problem without a place is shown at the file's beginning
    return {"line": line - 1, "character": offset - 1}
