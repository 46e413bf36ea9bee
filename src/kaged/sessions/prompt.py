"""What a model is asked: system prompt, window, reminder and tools, put together for one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kaged.models.turn import ModelRequest, ToolSpec
from kaged.sessions.entry import EntryRole
from kaged.sessions.messages import (
    NOTE_MARK,
    WindowMessage,
    message_of,
    message_of_json,
    text_block,
)
from kaged.sessions.transforms import ContextDraft

if TYPE_CHECKING:
    from kaged.sessions.agent_run import AgentRun
    from kaged.sessions.policies import HookedModelCall
    from kaged.sessions.todo_work import LoopTodos
    from kaged.sessions.transforms import Transforms

TODO_TOOL: Final = "kaged.todo"
SYSTEM_ID: Final = f"system{NOTE_MARK}prompt"
REMINDER_ID: Final = f"system{NOTE_MARK}reminder"


def system_prompt(own: str, injections: Sequence[str]) -> str:
    """Put what plugins inject, wrapped by the host already, before an agent's own prompt."""
    return "\n\n".join((*injections, own)) if injections else own


async def assemble(
    agent_run: AgentRun, todos: LoopTodos, transforms: Transforms, hooked: HookedModelCall | None
) -> ModelRequest:
    """Put together what the model is asked next. The reminder is in here and nowhere else.

    Raises:
        PipelineRefused, ReportedError: a policy does not let it go out.
    """
    messages = [message_of(SYSTEM_ID, EntryRole.SYSTEM, [text_block(agent_run.system_prompt)])]
    messages += agent_run.window.messages
    remind = await _reminder(agent_run, todos)
    if remind is not None:
        messages.insert(_reminder_place(messages), remind)
    tools: Sequence[ToolSpec] = agent_run.snapshot.specs
    if transforms.has_context:
        messages, tools = await _transformed(agent_run, messages, transforms)
    if hooked is not None:
        messages = await hooked.clear(agent_run.cleared, messages)
    return ModelRequest(
        messages=agent_run.view.write(messages),
        tools=tools,
        agent=agent_run.path,
        project_id=agent_run.run.project_id,
        session_id=agent_run.run.session_id,
    )


async def _reminder(agent_run: AgentRun, todos: LoopTodos) -> WindowMessage | None:
    """Make the sticky reminder of open todos; only the root of a session has a list."""
    if agent_run.path != "primary":
        return None
    text = await todos.reminder(
        agent_run.run.project_id,
        agent_run.run.session_id,
        just_shown=just_shown(agent_run.window.messages),
    )
    return None if text is None else message_of(REMINDER_ID, EntryRole.SYSTEM, [text_block(text)])


def just_shown(messages: Sequence[WindowMessage]) -> bool:
    """Return whether the turn right before this step holds the result of a todo call."""
    for message in reversed(messages):
        if message.role is not EntryRole.TOOL_RESULT:
            return False
        if any(block.get("name") == TODO_TOOL for block in message.blocks):
            return True
    return False


def _reminder_place(messages: Sequence[WindowMessage]) -> int:
    """Put the reminder near the end: before the last words of the user, else at the end.

    Never between a turn and its results, which vendors refuse.
    """
    if messages and messages[-1].role is EntryRole.USER:
        return len(messages) - 1
    return len(messages)


async def _transformed(
    agent_run: AgentRun, messages: list[WindowMessage], transforms: Transforms
) -> tuple[list[WindowMessage], Sequence[ToolSpec]]:
    """Let scripts change this one request; what is no message is left out.

    Tools can be left out of it as well, and none be added.
    """
    specs = agent_run.snapshot.specs
    draft = ContextDraft(
        messages=[{**one.as_json(), "content": [*one.blocks]} for one in messages[1:]],
        system=agent_run.system_prompt,
        model=agent_run.model.alias,
        tools=[
            {"name": one.name, "description": one.description, "input_schema": one.parameters}
            for one in specs
        ],
    )
    said = await transforms.context(agent_run.run.session_id, draft)
    if said is draft:
        return messages, specs
    read = [
        message_of_json(one, f"script{NOTE_MARK}{number}")
        for number, one in enumerate(said.messages)
    ]
    system = [message_of(SYSTEM_ID, EntryRole.SYSTEM, [text_block(said.system)])]
    kept = {str(one["name"]) for one in said.tools}
    return (
        [*(system if said.system else ()), *(one for one in read if one is not None)],
        [one for one in specs if one.name in kept],
    )
