"""Tools in the agent loop: names for vendors, failures, and what children may write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fakes.loop_lab import PROJECT, loop_lab
from fakes.played_model import PlayedModel, call, say
from fakes.tool_lab import make_tool
from kaged.base import JsonValue, KagedError
from kaged.models.turn import ModelRequest, ModelTurn
from kaged.tools import ToolError, ToolInvocation
from kaged.tools import errors as tool_errors
from requirements import requirement

ALL_ON = "primary: {model: default, system_prompt: You help., tools: {'*': {enabled: true}}}\n"
TREE = """
primary:
  model: default
  system_prompt: You lead.
  subagents:
    child: {model: small, system_prompt: You work., cage: disabled}
"""


@requirement("AT-REG-32")
async def test_a_vendor_without_dots_gets_names_it_takes_and_calls_lead_back(
    tmp_path: Path,
) -> None:
    async def play(request: ModelRequest) -> ModelTurn:
        names = [one.name for one in request.tools]
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one) for one in names), names
        assert len(set(names)) == len(names)
        if any(getattr(one, "call_id", None) for one in request.messages):
            return say("Done.")
        wanted = [one for one in names if one.startswith(("file", "mem-md"))]
        assert len(wanted) == 3
        return say("", *[call(one) for one in wanted])

    tools = [
        make_tool("file.peek"),
        make_tool("file.pe_ek"),
        make_tool("mem-md.look", plugin="mem-md"),
    ]
    async with loop_lab(
        tmp_path,
        PlayedModel(play, play),
        tools=tools,
        project=ALL_ON.replace("tools:", "plugins: {mem: {package: mem-md}}, tools:"),
        plugins_of=lambda _project, _agent: ["mem-md"],
    ) as lab:
        end = await lab.talk("Go")
        assert end.text == "Done.", end
        called = {one["tool_name"] for one in lab.audit.of("tool.called")}
        assert called == {"file.peek", "file.pe_ek", "mem-md.look"}
        assert [one.error for one in lab.outcomes] == [None, None, None]


def _every_error() -> list[Exception]:
    """Return one of each error that a tool can end with, and two unexpected ones."""
    made: list[Exception] = []
    waiting: list[Any] = [ToolError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ == tool_errors.__name__ and kind is not tool_errors.ReportedError:
            made.append(kind(f"this is {kind.__name__}"))
    made += [ToolError(f"this is {code}", code=code) for code in tool_errors.ToolErrorCode]
    return [*made, KagedError("an error of ours"), ZeroDivisionError("a bug")]


@requirement("AT-FAIL-31")
async def test_no_failure_of_a_tool_ends_the_run(tmp_path: Path) -> None:
    """The model is told of each, and goes on."""
    errors = _every_error()
    assert len(errors) > 8
    left = list(errors)

    async def fail(_: ToolInvocation) -> JsonValue:
        raise left.pop(0)

    turns = [say("", call("file_peek")) for _ in errors]
    model = PlayedModel(*turns, say("Recovered."))
    project = ALL_ON.replace("{model", "{max_steps: 200, model", 1)
    tools = [make_tool("file.peek", handler=fail)]
    async with loop_lab(tmp_path, model, tools=tools, project=project) as lab:
        end = await lab.talk("Go")
        assert (end.status, end.text) == ("completed", "Recovered.")
        assert left == []
        told = [one for one in model.texts() if one.startswith("error file_peek")]
        assert len(told) == len(errors)
        for error, text in zip(errors, told, strict=True):
            if isinstance(error, ToolError):
                assert error.code in text


@requirement("AT-SCOPE-08")
async def test_a_child_writes_no_issue_todo_or_workflow_of_its_own(tmp_path: Path) -> None:
    root = PlayedModel(say("", call("agent-child", {"message": "Work"})), say("ok"))
    small = PlayedModel(
        say(
            "",
            call("kaged.issue", {"action": "create", "title": "mine", "body": "b"}),
            call("kaged.todo", {"action": "add", "items": ["mine"]}),
            call("kaged.workflow.trigger", {"name": "deploy", "inputs": {}}),
        ),
        say("I would open an issue."),
        alias="small",
    )
    async with loop_lab(tmp_path, root, models={"small": small}, project=TREE) as lab:
        session, issue_id = await lab.bound("the plan")
        before: Any = await lab.work.issues.list(PROJECT)
        assert (await lab.run(session, "Go")).status == "completed"
        told = [one for one in small.texts(1) if one.startswith("error")]
        assert [("principal_scope_violation" in one) for one in told] == [True] * 3
        assert await lab.work.issues.list(PROJECT) == before
        todos = await lab.store.todos.of(issue_id)
        assert [(one.content, one.origin_agent) for one in todos] == [("the plan", "primary")]
        assert (await lab.work.workflows.runs(PROJECT, 5, 0))["total"] == 0
        # What it returned reached the root, which alone decides what becomes of it.
        assert "I would open an issue." in "\n".join(root.texts())
