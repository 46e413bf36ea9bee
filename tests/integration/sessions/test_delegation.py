"""Subagents: `agent-<key>` tools, their windows, cages and failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fakes.loop_lab import PROJECT, loop_lab
from fakes.played_model import PlayedModel, call, hang, say
from fakes.tool_lab import Spy, make_tool
from kaged.models.turn import ModelRequest, ModelTurn
from requirements import requirement

WAIT_S = 30
TREE = """
primary:
  model: default
  system_prompt: You lead.
  subagents:
    coder:
      model: small
      system_prompt: You code.
      description: Writes code.
      max_steps: 2
      cage: {fs: [{mode: ro, path: ./src}]}
      tools: {file.peek: {enabled: true}}
      subagents:
        linter: {model: small, system_prompt: You lint., tools: {file.peek: {enabled: true}}}
    scraper: {model: small, system_prompt: You scrape.}
"""


def peek(spy: Spy) -> Any:
    return make_tool("file.peek", handler=spy)


@requirement("AT-SESS-07", "AT-RES-14", "AT-SESS-09")
async def test_a_child_works_with_its_own_prompt_model_tools_and_cage(tmp_path: Path) -> None:
    """It sees the delegation message and nothing else; its words are the tool's result."""
    spy = Spy({"seen": 1})
    root = PlayedModel(
        say("", call("agent-coder", {"message": "Fix it", "context": {"file": "a.py"}})),
        say("All done."),
    )
    small = PlayedModel(say("", call("file_peek")), say("Fixed."), alias="small")
    async with loop_lab(
        tmp_path, root, models={"small": small}, tools=[peek(spy)], project=TREE
    ) as lab:
        end = await lab.talk("Please help")

        assert (end.status, end.text) == ("completed", "All done.")
        assert small.texts(0) == [
            "system: You code.",
            'user: Fix it\n\nContext:\n{\n "file": "a.py"\n}',
        ]
        assert [one.name for one in small.requests[0].tools] == ["agent-linter", "file_peek"]
        assert small.requests[0].agent == "primary.subagents.coder"
        offered = [one.name for one in root.requests[0].tools if one.name.startswith("agent-")]
        assert offered == ["agent-coder", "agent-scraper"]
        assert root.texts()[-1] == "result agent-coder: Fixed."
        (made,) = spy.calls
        assert made.context.caller == "primary.subagents.coder"
        assert made.context.run_id == end.run_id
        assert made.context.cage_policy is not None
        assert [grant.path for grant in made.context.cage_policy.fs] == [str(lab.root / "src")]
        _, sessions = await lab.store.sessions.page(PROJECT, None, 10, 0)
        assert sessions == 1
        assert await lab.entries(end.session_id, "primary") == [
            "user: Please help",
            "assistant: <agent-coder>",
            "tool_result: [agent-coder] Fixed.",
            "assistant: All done.",
        ]


@requirement("AT-CTX-02")
async def test_callers_are_places_in_the_tree_to_any_depth(tmp_path: Path) -> None:
    """As `tool.called` has them."""
    root = PlayedModel(say("", call("agent-coder", {"message": "Go"})), say("ok"))
    turns = iter(
        [
            say("", call("agent-linter", {"message": "Lint"})),
            say("", call("file_peek")),
            say("clean"),
            say("", call("file_peek")),
            say("done"),
        ]
    )

    async def small(request: ModelRequest) -> ModelTurn:
        del request
        return next(turns)

    async with loop_lab(
        tmp_path,
        root,
        models={"small": PlayedModel(*[small] * 5, alias="small")},
        tools=[peek(Spy())],
        project=TREE.replace("max_steps: 2", "max_steps: 9"),
    ) as lab:
        assert (await lab.talk("Go")).status == "completed"

        called = [(one["tool_name"], one["caller"]) for one in lab.audit.of("tool.called")]
        assert called == [
            ("agent-coder", "primary"),
            ("agent-linter", "primary.subagents.coder"),
            ("file.peek", "primary.subagents.coder.subagents.linter"),
            ("file.peek", "primary.subagents.coder"),
        ]


@requirement("AT-SESS-08")
async def test_what_goes_wrong_with_a_child_is_an_error_of_the_call(tmp_path: Path) -> None:
    """Too many steps, a model that fails, a model nobody knows, no message at all."""
    root = PlayedModel(
        say("", call("agent-coder", {"message": "Loop"})),
        say("", call("agent-scraper", {"message": "Fail"})),
        say("", call("agent-coder", {})),
        say("I give up."),
    )
    small = PlayedModel(
        say("", call("file_peek")),
        say("", call("file_peek")),
        RuntimeError("a bug of the model's"),
        alias="small",
    )
    async with loop_lab(
        tmp_path, root, models={"small": small}, tools=[peek(Spy())], project=TREE
    ) as lab:
        end = await lab.talk("Go")

        assert (end.status, end.text) == ("completed", "I give up.")
        results = [one for one in root.texts() if one.startswith("error")]
        assert "step_limit_reached" in results[0]
        assert "internal_error" in results[1]
        assert "invalid_params" in results[2]
        assert "message" in results[2]


async def test_two_tasks_of_one_agent_never_mix(tmp_path: Path) -> None:
    """Side by side or one after the other, each has a window of its own."""
    root = PlayedModel(
        say("", call("agent-scraper", {"message": "A"}), call("agent-scraper", {"message": "B"})),
        say("", call("agent-scraper", {"message": "C"})),
        say("ok"),
    )

    async def echo(request: ModelRequest) -> ModelTurn:
        assert len(request.messages) == 2
        return say(f"did {getattr(request.messages[1], 'text', '')}")

    small = PlayedModel(echo, echo, echo, alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=TREE) as lab:
        assert (await lab.talk("Go")).status == "completed"
        results = [one for one in root.texts() if one.startswith("result")]
        assert results == [f"result agent-scraper: did {one}" for one in "ABC"]


@requirement("AT-TODO-27", "AT-TODO-30")
async def test_a_child_knows_nothing_of_the_issue(tmp_path: Path) -> None:
    """No id, no list, no reminder; what it proposes is the root's to store."""
    root = PlayedModel(say("", call("agent-scraper", {"message": "Think"})), say("ok"))
    small = PlayedModel(
        say("", call("kaged.todo", {"action": "add", "items": ["mine"]})),
        say('{"proposed_todos": {"items": ["from below"]}}'),
        alias="small",
    )
    async with loop_lab(tmp_path, root, models={"small": small}, project=TREE) as lab:
        session, issue_id = await lab.bound("secret plan")
        assert (await lab.run(session, "Go")).status == "completed"

        said = "\n".join(small.texts(0) + small.texts(1))
        assert "secret plan" not in said
        assert issue_id not in said
        assert "principal_scope_violation" in small.texts(1)[-1]
        assert [one.content for one in await lab.store.todos.of(issue_id)] == ["secret plan"]


NO_PROPOSALS = (
    '{"done": true}',
    '{"proposed_todos": ["four"]}',
    '{"proposed_todos": {"items": ["four"], "owner": "me"}}',
    '{"proposed_todos": {"items": ["four"], "phase": 4}}',
)


@requirement("AT-TODO-29", "AT-TODO-32")
async def test_proposals_are_stored_only_where_the_project_says_auto(tmp_path: Path) -> None:
    """As steps of the child that proposed them; free text and review store nothing."""
    turns = [
        say('{"proposed_todos": {"items": ["one", "two"], "phase": "later"}}'),
        say("proposed_todos: none"),
        *map(say, NO_PROPOSALS),
        say('{"proposed_todos": {"items": ["three"]}}'),
    ]
    root = PlayedModel(
        say("", call("agent-auto", {"message": "A"})),
        say("", call("agent-auto", {"message": "B"})),
        *[say("", call("agent-auto", {"message": "B"})) for _ in NO_PROPOSALS],
        say("", call("agent-review", {"message": "C"})),
        say("ok"),
    )
    tree = """
primary:
  model: default
  system_prompt: You lead.
  subagents:
    auto: {model: small, system_prompt: Plan., todo_review: auto}
    review: {model: small, system_prompt: Plan.}
"""
    small = PlayedModel(*turns, alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=tree) as lab:
        session, issue_id = await lab.bound()
        assert (await lab.run(session, "Go")).status == "completed"

        stored = await lab.store.todos.of(issue_id)
        assert [(one.content, one.kind, one.origin_agent, one.phase) for one in stored] == [
            ("one", "step", "primary.subagents.auto", "later"),
            ("two", "step", "primary.subagents.auto", "later"),
        ]
        assert len(lab.audit.of("kaged.todo.added")) == 1


async def test_cancelling_a_run_ends_the_children_in_it(tmp_path: Path) -> None:
    """Down to the model that the deepest one waits for."""
    root = PlayedModel(say("", call("agent-scraper", {"message": "Wait"})))
    small = PlayedModel(hang(), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=TREE) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        await asyncio.wait_for(small.asked.wait(), WAIT_S)
        await lab.driver.cancel(session)

        assert (await lab.driver.wait(run_id)).status == "cancelled"
        assert small.closed == 1


async def test_a_cancelled_child_leaves_no_call_without_a_result(tmp_path: Path) -> None:
    """Neither the one that was being made nor those behind it."""
    begun = asyncio.Event()

    async def work(_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    root = PlayedModel(say("", call("agent-coder", {"message": "Go"})))
    small = PlayedModel(say("", call("file_peek"), call("file_peek")), alias="small")
    tools = [make_tool("file.peek", handler=work)]
    async with loop_lab(tmp_path, root, models={"small": small}, tools=tools, project=TREE) as lab:
        session = await lab.session()
        run_id = await lab.driver.send(session, "Go")
        await asyncio.wait_for(begun.wait(), WAIT_S)
        await lab.driver.cancel(run_id)

        said = await lab.entries(session)
        assert [one.count("[canc") for one in said if one.startswith("tool_result")] == [1, 1, 1]


async def test_a_run_counts_what_children_take(tmp_path: Path) -> None:
    """Their steps and tokens are its own."""
    root = PlayedModel(
        say("", call("agent-scraper", {"message": "Work"}), tokens=10), say("ok", tokens=10)
    )
    small = PlayedModel(say("done", tokens=500), alias="small")
    async with loop_lab(tmp_path, root, models={"small": small}, project=TREE) as lab:
        end = await lab.talk("Go")
        assert (end.status, end.steps) == ("completed", 3)
        assert end.usage["input_tokens"] == 520
