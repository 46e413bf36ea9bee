"""`Delegations`: what answers `agent-<key>`: the child agent at work, inside its parent's run.

It has its own prompt, model, tools, cage, plugins and window, and sees the delegation message and
nothing else. What goes wrong with it is an error of the tool call and ends nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.project import TodoReview
from kaged.models.errors import IncompleteAnswer
from kaged.sessions.agent_run import AgentRun, RunState, child_key, shortened
from kaged.sessions.agent_run_factory import AgentRunFactory
from kaged.sessions.loop import LoopParts, run_agent
from kaged.sessions.messages import AskedCall
from kaged.sessions.policies import HookedAgentCall
from kaged.sessions.run_values import MAX_DEPTH
from kaged.sessions.toolcalls import CANCELLED
from kaged.tools import ToolCallContext, ToolInvocation
from kaged.tools.errors import ToolError, tool_error_of
from kaged.tools.registry import SYNTHETIC_PREFIX

_BELOW = ".subagents."


Settle = Callable[[AgentRun], Awaitable[None]]
"""Gives the open calls of an agent their results before it goes on; see `resume`."""


@dataclass(eq=False)
class Delegations:
    """The children at work. `runs` are the runs under way, by id."""

    run_factory: AgentRunFactory
    parts: LoopParts
    runs: dict[str, RunState]

    async def delegate(self, call: ToolInvocation) -> JsonValue:
        """Carry out an `agent-<key>` call: the handler of these tools in every session.

        Raises:
            KagedError: whatever kept the child from being done.
        """
        context = call.context
        run = self.runs.get(context.run_id)
        if run is None:
            raise ToolError(
                f"{call.tool_name} is answered by the agent loop, and this call did not come "
                "from one",
                code="tool_not_found",
                fix="send the task to the agent in a session",
            )
        path = child_path(context.caller, call.tool_name)
        depth = _depth(path) - _depth(run.top)
        if depth > MAX_DEPTH:
            raise KagedError(
                f"Agents called agents {depth} levels deep; the limit is {MAX_DEPTH}.",
                code="delegation_too_deep",
                agent=path,
            )
        message, extra = str(call.args["message"]), call.args.get("context")
        if extra:
            message += f"\n\nContext:\n{json.dumps(extra, ensure_ascii=False, indent=1)}"
        agent_run = await self.run_factory.create(
            run, path, child_key(path, context.request_id), depth=depth, fresh=True
        )
        hooked = await self.parts.policies.agent_call(
            run, path, agent_run.model.alias, shortened(message)
        )
        if hooked is not None:
            message, agent_run.system_prompt = await hooked.before(
                message,
                tools=agent_run.snapshot.tools.names,
                model=agent_run.model.alias,
                system_prompt=agent_run.system_prompt,
            )
        await self.run_factory.tell(agent_run, message)
        return await self._work(agent_run, context, hooked)

    async def resume(self, agent_run: AgentRun, call: AskedCall, settle: Settle) -> None:
        """Go on with a child that stopped when the session began to wait; stores its result."""
        run = agent_run.run
        path = child_path(agent_run.path, call.name)
        context = agent_run.call_context(call.request_id)
        try:
            child = await self.run_factory.create(
                run, path, child_key(path, call.request_id), depth=agent_run.depth + 1
            )
            await settle(child)
            hooked = await self.parts.policies.agent_call(run, path, child.model.alias, child.asked)
            result = await self._work(child, context, hooked)
        except KagedError as error:
            body = tool_error_of(error).as_json()
            shown: JsonObject = {name: body[name] for name in ("code", "message", "detail")}
            await self.parts.tools.answer(agent_run, call, shown, is_error=True)
            return
        if call.request_id not in run.waiting:
            await self.parts.tools.answer(agent_run, call, result)

    def knows(self, agent_run: AgentRun, call: AskedCall) -> bool:
        """Return whether a call sets one of the agent's children to work."""
        return (
            call.name.startswith(SYNTHETIC_PREFIX)
            and child_path(agent_run.path, call.name) in agent_run.run.snapshot.agents
        )

    async def _work(
        self, agent_run: AgentRun, context: ToolCallContext, hooked: HookedAgentCall | None
    ) -> JsonValue:
        """Let a child work to its end, or until the session waits; returns its result."""
        run, parts = agent_run.run, self.parts
        try:
            end = await run_agent(agent_run, parts)
        except asyncio.CancelledError:
            await parts.tools.close(agent_run, CANCELLED)
            raise
        except IncompleteAnswer as error:
            # With what there is of it: whoever asked may be able to use that.
            raise tool_error_of(error) from error
        if end.paused:
            run.waiting.add(context.request_id)
            return {"interaction_requested": next(iter(run.pauses.values()))}
        text = end.text
        if hooked is not None:
            text = await hooked.after(text)
        result = structured(text)
        if agent_run.snapshot.agent.todo_review.value is TodoReview.AUTO:
            await parts.todos.proposed(context, result, agent_run.path)
        return result


def child_path(parent: str, tool_name: str) -> str:
    """Return the path of the agent that an `agent-<key>` tool of a parent stands for."""
    return f"{parent}{_BELOW}{tool_name.removeprefix(SYNTHETIC_PREFIX)}"


def structured(text: str) -> JsonValue:
    """Return what an agent answered: an object where its text is one, else the text."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        bare = bare.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if not (bare.startswith("{") and bare.endswith("}")):
        return text
    try:
        found = json.loads(bare)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def _depth(path: str) -> int:
    return path.count(_BELOW)
