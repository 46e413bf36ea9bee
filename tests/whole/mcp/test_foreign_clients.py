"""Clients that other people wrote use an agent's tools: both transports, results, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.mcp import TRANSPORTS, inspector, python, typescript
from whole.harness.project import Project

READER = "primary.subagents.reader"
Sdk = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def caged(project: Project) -> Project:
    """Return a project whose reader sees `src` only."""
    project.describe(
        subagents={
            "reader": {
                "model": "default",
                "system_prompt": "You read.",
                "cage": {"fs": [{"mode": "ro", "path": "./src"}]},
                "tools": {"file.*": {"enabled": True}},
            }
        }
    )
    project.write("src/a.txt", "hello\n")
    project.write("secret.txt", "s3cret\n")
    project.reload()
    return project


SDKS: dict[str, Sdk] = {"typescript": typescript, "python": python}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sdk", SDKS)
def test_an_sdk_lists_calls_and_gets_errors_as_errors(
    daemon: Daemon, caged: Project, transport: str, sdk: str
) -> None:
    server, tools, read, missing, denied, wrong, unknown = SDKS[sdk](
        daemon,
        caged,
        ("listTools", {}),
        ("callTool", {"name": "file_read", "arguments": {"path": "src/a.txt"}}),
        ("callTool", {"name": "file_read", "arguments": {"path": "src/b.txt"}}),
        ("callTool", {"name": "file_read", "arguments": {"path": "secret.txt"}}),
        ("callTool", {"name": "file_read", "arguments": {"path": 5}}),
        ("callTool", {"name": "no_such_tool", "arguments": {}}),
        transport=transport,
        agent=READER,
    )
    assert server["result"]["name"] == "kaged"
    listed = {one["name"]: one for one in tools["result"]["tools"]}
    assert listed["file_read"]["outputSchema"]["type"] == "object"
    assert read["result"]["structuredContent"]["content"] == "1: hello"
    for answer, code in (
        (missing, "file_not_found"),
        (denied, "capability_denied"),
        (wrong, "invalid_params"),
        (unknown, "tool_not_found"),
    ):
        _is_error(answer, code)
    assert "s3cret" not in str(denied)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_inspector_lists_tools_and_shows_an_error_as_the_tools_own(
    daemon: Daemon, caged: Project, transport: str
) -> None:
    tools = inspector(daemon, caged, "--method", "tools/list", transport=transport)
    assert "file_read" in {one["name"] for one in tools["tools"]}
    words = ("--method", "tools/call", "--tool-name", "file_read", "--tool-arg")
    good = inspector(daemon, caged, *words, "path=src/a.txt", transport=transport)
    assert good["structuredContent"]["content"] == "1: hello"
    bad = inspector(daemon, caged, *words, "path=src/b.txt", transport=transport)
    _is_error({"result": bad}, "file_not_found")


@whole("AT-REG-07")
@pytest.mark.parametrize("sdk", SDKS)
def test_what_tools_answer_is_what_they_said_they_would(
    daemon: Daemon, project: Project, sdk: str
) -> None:
    """Both SDKs hold each result against the tool's schema, and refuse one that does not fit."""
    cage = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
    project.describe(cage=cage)
    project.reload()
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("file_write", {"path": "src/new.py", "content": "def one():\n    return 1\n"}),
        ("file_read", {"path": "src/new.py"}),
        ("edit_text", {"path": "src/new.py", "old_string": "return 1", "new_string": "return 2"}),
        ("search_glob", {"pattern": "**/*.py"}),
        ("search_grep", {"pattern": "return"}),
        ("search_grep", {"pattern": "return", "output_mode": "content"}),
        ("search_grep", {"pattern": "return", "output_mode": "count"}),
        ("search_ast", {"pattern": "return $A", "lang": "python"}),
        ("edit_ast", {"rewrites": {"return 2": "return 3"}, "lang": "python"}),
        ("shell_bash", {"command": "echo out; echo err >&2; exit 3"}),
        ("kaged_issue", {"action": "create", "title": "An issue", "body": "Text."}),
        ("kaged_issue", {"action": "list"}),
        ("kaged_workflow_list", {}),
    ]
    _, listed, *answers = SDKS[sdk](
        daemon,
        project,
        ("listTools", {}),
        *(("callTool", {"name": name, "arguments": given}) for name, given in wanted),
    )
    known = {one["name"]: one for one in listed["result"]["tools"]}
    for (name, _), answer in zip(wanted, answers, strict=True):
        assert known[name]["outputSchema"]["type"] == "object", "else nothing was held against it"
        assert "result" in answer, (name, answer)
        assert not answer["result"].get("isError"), (name, answer)
        assert "structuredContent" in answer["result"], name


def _is_error(answer: dict[str, Any], code: str) -> None:
    """See that an error of ours arrived as one: code, message and fix for models and programs."""
    assert "result" in answer, answer
    result = answer["result"]
    assert result["isError"] is True
    assert "structuredContent" not in result
    text = result["content"][0]["text"]
    shown = result["_meta"]["kaged/error"]
    assert shown["code"] == code, result
    assert text.startswith(f"{code}: {shown['message']}")
    if code != "invalid_params":  # whose message says what to write instead
        assert f"Fix: {shown['fix']}" in text
