"""Calls, formatting and kinds of words as typed actions, and questions that are asked together."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of
from whole.harness.code import ALL_CAPABILITIES, PlannedServer, span
from whole.harness.daemon import wait_for
from whole.harness.project import Project

READER = path_of("reader")
LEGEND = {"tokenTypes": ["function", "variable"], "tokenModifiers": ["static", "readonly"]}
MORE = {
    **ALL_CAPABILITIES,
    "callHierarchyProvider": True,
    "documentFormattingProvider": True,
    "semanticTokensProvider": {"legend": LEGEND, "full": True},
}
AT = {"path": "./src/a.py", "line": 1, "character": 4}


@pytest.fixture
def server(project: Project) -> PlannedServer:
    """Return a server that can do all of it, and an agent that sees `src` only."""
    reader = agent("code.*", cage=caged("ro:./src"))
    made = PlannedServer(project, subagents={"reader": reader})
    made.plan(capabilities=MORE)
    project.write("src/a.py", "def 😀one():\n    two()\n")
    project.write("src/b.py", "x = 1\none()\n")
    project.write("data/c.py", "one()\n")
    return made


def function(server: PlannedServer, path: str, line: int, name: str) -> dict[str, Any]:
    """Return a CallHierarchyItem."""
    place = server.place(path, line, 0, 3)
    return {"name": name, "kind": 12, **place, "selectionRange": place["range"]}


@whole("AT-BEY-21")
def test_who_calls_a_function_is_told_within_the_cage(server: PlannedServer) -> None:
    item = {**function(server, "src/a.py", 0, "one"), "data": {"own": 1}}
    server.answer("textDocument/prepareCallHierarchy", {"result": [item]})
    callers = [
        {"from": function(server, "src/b.py", 1, "b"), "fromRanges": [span(1, 0, 3)]},
        {"from": function(server, "data/c.py", 0, "SECRET"), "fromRanges": [span(0, 0, 3)]},
    ]
    server.answer("callHierarchy/incomingCalls", {"result": callers})
    said = server.ask("call_hierarchy", READER, **AT)
    assert said == {
        "item": {
            "name": "one", "kind": "function", "path": "./src/a.py", "line": 1, "character": 0
        },
        "direction": "incoming",
        "calls": [
            {
                "name": "b", "kind": "function", "path": "./src/b.py", "line": 2, "character": 0,
                "sites": [{"line": 2, "character": 0}],
            },
            {"path": "./data/c.py", "line": 1, "outside_cage": True, "sites": []},
        ],
        "count": 2,
    }  # fmt: skip
    [asked] = server.received("callHierarchy/incomingCalls")
    assert asked["params"]["item"]["data"] == {"own": 1}
    called = [{"to": function(server, "data/c.py", 0, "two"), "fromRanges": [span(1, 4, 7)]}]
    server.answer("callHierarchy/outgoingCalls", {"result": called})
    said = server.ask("call_hierarchy", direction="outgoing", **AT)
    assert (said["calls"][0]["path"], said["calls"][0]["sites"]) == (
        "./data/c.py",
        [{"line": 2, "character": 4}],
    )
    server.answer("textDocument/prepareCallHierarchy", {"result": None})
    assert server.ask("call_hierarchy", **AT)["item"] is None


@whole("AT-BEY-21")
def test_a_formatter_tells_its_edits_and_changes_nothing(server: PlannedServer) -> None:
    edits = [
        {"range": span(1, 0, 4), "newText": "\t"},
        {"range": span(0, 0, 3), "newText": "def"},
    ]
    server.answer("textDocument/formatting", {"result": edits})
    before = server.project.read("src/a.py")
    said = server.ask("format", READER, path="./src/a.py", tabs=True, tab_size=2)
    assert said == {
        "path": "./src/a.py",
        "edits": [{"line": 2, "character": 0, "old": "    ", "new": "\t"}],
        "count": 1,
    }
    [asked] = server.received("textDocument/formatting")
    assert asked["params"]["options"] == {"tabSize": 2, "insertSpaces": False}
    assert server.project.read("src/a.py") == before
    refused = server.refusal("format", READER, path="./data/c.py")
    assert refused["code"] == "capability_denied"


@whole("AT-BEY-21")
def test_words_have_their_kinds_and_places_in_characters(server: PlannedServer) -> None:
    # `😀one` is five units of UTF-16; then `two` on the next line, of a kind that has no name.
    data = [0, 4, 5, 0, 3, 1, 4, 3, 9, 0, 90, 0, 1, 1, 0]
    server.answer("textDocument/semanticTokens/full", {"result": {"data": data}})
    said = server.ask("semantic_tokens", READER, path="./src/a.py")
    assert said["tokens"] == [
        {
            "line": 1, "character": 4, "text": "😀one", "type": "function",
            "modifiers": ["static", "readonly"],
        },
        {"line": 2, "character": 4, "text": "two", "type": "unknown", "modifiers": []},
    ]  # fmt: skip
    said = server.ask("semantic_tokens", path="./src/a.py", limit=1)
    assert (said["count"], said["total"]) == (1, 2)


@whole("AT-BEY-21")
def test_what_a_server_does_not_offer_is_said(server: PlannedServer) -> None:
    server.plan(capabilities=ALL_CAPABILITIES)
    for action in ("call_hierarchy", "format", "semantic_tokens"):
        refused = server.refusal(action, **AT)
        assert refused["code"] == "invalid_params"
        assert "unsupported by server" in str(refused["data"]["detail"])


@whole("AT-BEY-04")
def test_a_server_that_tolerates_it_is_asked_together_and_edits_come_alone(
    server: PlannedServer,
) -> None:
    project = server.project
    servers = [{"lang": "python", "command": server.command, "parallel_requests": 2}]
    project.describe(cage="disabled", top={"lsp": {"servers": servers}})
    project.reload()
    server.ask("diagnostics", path="./src/a.py")
    server.answer("textDocument/hover", "hang")
    server.answer("textDocument/definition", {"result": None})
    server.answer("textDocument/prepareRename", {"result": None})
    socket = project.daemon.get("/status")["socket"]
    url = f"http://kaged/api/v1/projects/{project.id}/tools/call"
    body = {"agent": "primary", "tool": "code.lsp", "params": {"action": "hover", **AT}}
    renamed: list[Any] = []
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=1.5) as client:

        def hang() -> None:
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, json=body)

        hanging = threading.Thread(target=hang)
        hanging.start()
        wait_for(lambda: "textDocument/hover" in server.methods())
        # The first question is open and the second has its answer.
        assert server.ask("definition", **AT) == {"definitions": []}
        assert "$/cancelRequest" not in server.methods()
        rename = threading.Thread(
            target=lambda: renamed.append(server.refusal("rename", new_name="y", **AT))
        )
        rename.start()
        hanging.join()
        rename.join()
    assert renamed[0]["code"] == "rename_not_possible"
    order = server.methods()
    assert order.index("$/cancelRequest") < order.index("textDocument/prepareRename")
