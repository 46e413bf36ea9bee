"""`kaged issue`, `todo`, `workflow` and `inbox`, end to end with a real daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import Commands, load_project
from fakes.running_daemon import DaemonProcess

PROJECT = """\
version: 1
project: SLUG
primary:
  model: default
  system_prompt: You help.
workflows:
  deploy:
    description: Ship it.
    inputs:
      count: { type: integer, required: true }
"""


@pytest.fixture
def commands(shared: DaemonProcess, tmp_path: Path) -> Commands:
    """Return commands on a loaded project."""
    return load_project(shared, tmp_path / "sample", PROJECT)


def test_an_issues_way_through_the_commands(commands: Commands) -> None:
    text = commands.root / "body.md"
    text.write_text("From a *file*.\n", encoding="utf-8")
    assert commands.json("issue", "create", "Dark mode", "--body-file", str(text))["number"] == 1
    assert commands.run("issue", "create", "Second", "-b", "x").stdout == "Filed #2.\n"
    assert commands.run("issue", "list", "--search", "file").stdout == "#1\topen\t\tDark mode\n"
    commands.json("issue", "comment", "1", "for us", "--internal")
    assert commands.json("issue", "edit", "1", "--assign", "primary")["updated_fields"] == [
        "assignment"
    ]
    commands.json("issue", "edit", "1", "--unassign", "--title", "Darker")
    refused = commands.json("issue", "move", "1", "resolved", expect=6)["error"]
    assert refused["code"] == "invalid_params"
    assert (
        commands.run("issue", "move", "1", "resolved", "-c", "so").stdout
        == "#1: open -> resolved\n"
    )
    shown = commands.run("issue", "show", "1").stdout
    assert "#1 Darker" in shown
    assert "for us" in shown
    assert "operators only" in shown
    assert commands.json("issue", "list", "--status", "resolved")["total"] == 1
    assert commands.json("issue", "show", "99", expect=3)["error"]["code"] == "issue_not_found"
    assert commands.json("issue", "edit", "1", expect=6)["error"]["code"] == "invalid_params"


def test_todos_are_kept_from_the_command_line(commands: Commands) -> None:
    commands.json("issue", "create", "One")
    commands.json("todo", "set", "1", "write it", "test it", "--phase", "first")
    commands.json("todo", "add", "1", "it works", "--criterion")
    commands.json("todo", "start", "1", "write")
    commands.json("todo", "note", "1", "write", "mind the gap")
    assert commands.run("todo", "list", "1").stdout == (
        "- [>] write it\n  → mind the gap\n- [ ] test it\n- [ ] it works (criterion)\n"
    )
    commands.json("todo", "done", "1", "write it")
    commands.json("todo", "drop", "1", "it works")
    assert commands.run("todo", "list", "1").stdout == "- [x] write it\n- [ ] test it\n"
    refused = commands.json("todo", "start", "1", "nothing", expect=3)["error"]
    assert refused["code"] == "todo_not_found"


def test_workflows_are_shown_and_checked(commands: Commands) -> None:
    assert commands.run("workflow", "list").stdout == "deploy\tcount:integer\toperator\tShip it.\n"
    wrong = commands.json("workflow", "run", "deploy", "-i", "count=many", expect=6)["error"]
    assert "inputs.count: must be integer" in wrong["message"]
    assert commands.json("workflow", "runs")["total"] == 0
    begun = commands.json("workflow", "run", "deploy", "-i", "count=3")
    assert begun["workflow_name"] == "deploy"
    assert commands.json("workflow", "runs")["total"] == 1
    assert (
        commands.json("workflow", "status", "0" * 26, expect=3)["error"]["code"] == "run_not_found"
    )
    assert commands.run("workflow", "run", "deploy", "-i", "count").returncode == 2


def test_a_waiting_agent_is_answered_from_the_inbox(commands: Commands) -> None:
    def answered(ask: list[str], answer: Callable[[str], list[str]]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(commands.json, "tool", "call", *ask)
            found: list[Any] = []
            while not found:
                found = commands.json("inbox", "list")["items"]
                assert not waiting.done() or waiting.result() is None
            commands.json("inbox", *answer(str(found[0]["request_id"])))
            return waiting.result()["result"]

    given = answered(
        ["kaged.checkpoint", "message=May I?"], lambda one: ["approve", one, "-t", "go on"]
    )
    assert (given["decision"], given["text"]) == ("approve", "go on")
    questions = [{"id": "c", "title": "Which?", "options": ["a", "b"], "multiple": True}]
    given = answered(
        ["kaged.ask", f"questions:={json.dumps(questions)}"],
        lambda one: ["answer", one, "-s", "c=a", "-s", "c=b"],
    )
    assert given["answers"] == {"c": ["a", "b"]}
    listed = commands.json("inbox", "list", "--all")["items"]
    assert [one["status"] for one in listed] == ["answered", "answered"]
    shown = commands.run("inbox", "show", listed[0]["request_id"]).stdout
    assert "c: Which?" in shown
