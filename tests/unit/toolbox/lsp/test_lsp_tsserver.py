"""tsserver asked for problems, and what each server is told of us at its start."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.diagnostics import asks_tsserver, tsserver_problems
from kaged.toolbox.lsp.errors import LspRequestFailed
from kaged.toolbox.lsp.handshake import Capabilities, initialize_params
from kaged.toolbox.lsp.positions import SourceText
from kaged.toolbox.lsp.server import LspServer, OpenFile

FILE = OpenFile("file:///p/a.ts", "/p/a.ts", 3, SourceText("let a = b;\n"))
WRONG: JsonObject = {
    "start": {"line": 1, "offset": 9},
    "end": {"line": 1, "offset": 10},
    "text": "Cannot find name 'b'.",
    "code": 2304,
    "category": "error",
}
UNUSED: JsonObject = {**WRONG, "category": "suggestion", "source": "plugin", "start": None}


class Server:
    """Answers commands by what tsserver is asked; an exception is raised."""

    def __init__(self, **bodies: JsonValue | Exception) -> None:
        self.asked: list[JsonObject | None] = []
        self._bodies = bodies

    async def request(self, method: str, params: JsonObject, limit_s: float) -> JsonValue:
        assert (method, limit_s) == ("workspace/executeCommand", 5.0)
        self.asked.append(params)
        kind = cast("list[Any]", params["arguments"])[0]
        body = self._bodies.get(kind, [])
        if isinstance(body, Exception):
            raise body
        return {"type": "response", "body": body}


async def problems(server: Server) -> tuple[JsonObject, ...] | None:
    return await tsserver_problems(cast("LspServer", server), FILE, 5.0)


async def test_syntax_types_and_suggestions_come_together_as_the_protocol_has_them() -> None:
    server = Server(semanticDiagnosticsSync=[WRONG], suggestionDiagnosticsSync=[UNUSED])
    found = await problems(server)
    assert found is not None
    first, second = found
    assert first == {
        "range": {"start": {"line": 0, "character": 8}, "end": {"line": 0, "character": 9}},
        "severity": 1,
        "message": "Cannot find name 'b'.",
        "code": 2304,
        "source": "typescript",
    }
    assert (second["severity"], second["source"]) == (4, "plugin")
    assert cast("JsonObject", second["range"])["start"] is None
    assert len(server.asked) == 3


async def test_a_clean_file_is_said_to_be_clean() -> None:
    assert await problems(Server()) == ()


@pytest.mark.parametrize("body", [None, "no list", LspRequestFailed("No Project.")])
async def test_what_tsserver_cannot_say_is_not_taken_for_clean(body: JsonValue | Exception) -> None:
    assert await problems(Server(semanticDiagnosticsSync=body)) is None


def test_only_a_server_that_passes_questions_on_is_asked() -> None:
    command = "typescript.tsserverRequest"
    assert asks_tsserver(Capabilities({"executeCommandProvider": {"commands": [command]}})) is True
    assert asks_tsserver(Capabilities({"executeCommandProvider": {"commands": ["x"]}})) is False
    assert asks_tsserver(Capabilities({})) is False


@pytest.mark.parametrize(
    ("program", "later"), [("/opt/bin/ty", False), ("pyright-langserver", True), ("gopls", True)]
)
def test_ty_says_at_its_start_that_it_can_be_asked_for_problems(program: str, later: bool) -> None:
    params = cast("Any", initialize_params("/p", "python", (program, "server")))
    said = params["capabilities"]["textDocument"]
    assert said["diagnostic"]["dynamicRegistration"] is later
    assert said["rename"] == {"dynamicRegistration": True, "prepareSupport": True}


def test_gopls_is_asked_to_tell_of_its_looks_for_problems() -> None:
    params = cast("Any", initialize_params("/p", "go", ("gopls",)))
    assert params["initializationOptions"]["verboseWorkDoneProgress"] is True
    assert "initializationOptions" not in initialize_params("/p", "python", ("ty",))
