"""`ToolRunner`: the tool calls of one model turn, through dispatch, side by side where safe.

Calls that change nothing run together; one that changes something, or asks the operator, runs by
itself in its turn. Each result is durable before the next step, and once the session waits for
the operator nothing more is called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.mcp.progress import PROGRESS
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.messages import AskedCall, result_block
from kaged.sessions.transforms import TransformVeto
from kaged.tools import ToolError

if TYPE_CHECKING:
    from kaged.base import JsonObject, JsonValue
    from kaged.sessions.agent_run import AgentRun
    from kaged.sessions.needs import Announcer
    from kaged.sessions.transcript import Transcript
    from kaged.sessions.transforms import Transforms
    from kaged.tools.dispatch import ToolDispatcher

MAX_PARALLEL: Final = 8
"""How many calls of one turn run at the same time."""

ASKING_TOOLS: Final = frozenset({"kaged.ask", "kaged.form", "kaged.checkpoint"})
BLOCKED: Final = "[BLOCKED]"
CANCELLED: Final = "[cancelled] The run was cancelled before this call had a result."

_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(eq=False)
class ToolRunner:
    """Carries out what models ask for."""

    dispatcher: ToolDispatcher
    transcript: Transcript
    transforms: Transforms
    announce: Announcer

    async def run(self, agent_run: AgentRun, calls: Sequence[AskedCall]) -> None:
        """Make the calls and store their results; those that wait for the operator stay open."""
        for batch in self._batches(agent_run, calls):
            if agent_run.run.paused and not _asks(batch[0]):
                await self._not_made(agent_run, batch)
            elif len(batch) == 1:
                await self._one(agent_run, batch[0])
            else:
                await self._together(agent_run, batch)

    async def close(self, agent_run: AgentRun, reason: str) -> None:
        """Set this as the result of every call without one, so that no call stays open forever."""
        drafts = [
            _draft(agent_run, call, reason, is_error=True) for call in agent_run.window.open_calls()
        ]
        if drafts:
            agent_run.window.add(await self.transcript.append(agent_run.run.session_id, drafts))

    async def answer(
        self, agent_run: AgentRun, call: AskedCall, result: JsonValue, *, is_error: bool = False
    ) -> None:
        """Store the outcome of a call that was not made here: an answer of the operator."""
        shown = await self.dispatcher.shown(
            None if is_error else call.name,
            result,
            agent_run.call_context(call.request_id),
            room_tokens=agent_run.room_tokens,
        )
        await self._keep(agent_run, call, shown, is_error=is_error)

    # -- own -----------------------------------------------------------------------------------

    def _batches(
        self, agent_run: AgentRun, calls: Sequence[AskedCall]
    ) -> Iterator[Sequence[AskedCall]]:
        together: list[AskedCall] = []
        for call in calls:
            alone = _asks(call) or self._changes(agent_run, call)
            if together and (alone or len(together) == MAX_PARALLEL):
                yield together
                together = []
            if alone:
                yield [call]
            else:
                together.append(call)
        if together:
            yield together

    def _changes(self, agent_run: AgentRun, call: AskedCall) -> bool:
        """Return whether a call may change something; when in doubt it does."""
        found = self.dispatcher.find(call.name, agent_run.call_context(call.request_id))
        if found is None or call.arguments is None:
            return False  # it will be refused
        changes = found.entry.tool.changes
        if isinstance(changes, bool):
            return changes
        try:
            return changes({**call.arguments, **(found.extra or {})})
        # Boundary: the arguments are as the model wrote them and checked by nobody yet.
        except Exception:  # noqa: BLE001 - see above
            return True

    async def _together(self, agent_run: AgentRun, calls: Sequence[AskedCall]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                # They end side by side, so none of them may take the room of the others.
                room = agent_run.room_tokens // len(calls)
                for call in calls:
                    group.create_task(self._one(agent_run, call, room))
        except BaseExceptionGroup as several:
            # What a call can end with is a result by now; this is the store, and says it once.
            raise several.exceptions[0] from several

    async def _one(
        self, agent_run: AgentRun, call: AskedCall, room_tokens: int | None = None
    ) -> None:
        """Make one call and store its result; `room_tokens` is what it may take of the window."""
        run = agent_run.run
        room = agent_run.room_tokens if room_tokens is None else room_tokens
        context = agent_run.call_context(call.request_id)
        params: JsonValue = call.raw if call.arguments is None else call.arguments
        is_error = False
        try:
            if call.arguments is not None:
                asked = await self.transforms.before_tool_call(
                    run.session_id, call.name, call.arguments
                )
                if isinstance(asked, TransformVeto):
                    await self._keep(agent_run, call, f"{BLOCKED} {asked.reason}", is_error=True)
                    return
                params = asked
            reporting = PROGRESS.set(partial(self._progressed, agent_run, call))
            try:
                result = await self.dispatcher.dispatch(call.name, params, context)
            finally:
                PROGRESS.reset(reporting)
            if call.request_id in run.waiting:
                run.asked(call.request_id, result)
                return  # the operator's answer, or the resumed subagent, gives its result
            text = await self.dispatcher.shown(call.name, result, context, room_tokens=room)
        except ToolError as error:
            is_error = True
            said = error_text(error)
            text = await self.dispatcher.shown(None, said, context, room_tokens=room)
        await self._keep(agent_run, call, text, is_error=is_error)

    def _progressed(
        self, agent_run: AgentRun, call: AskedCall, done: float, total: float | None, text: str
    ) -> None:
        """Publish how far a call is, as the tool itself reports it."""
        data: JsonObject = {
            "request_id": call.request_id,
            "tool_name": call.name,
            "text": text,
            "done": done,
            "total": total,
        }
        self.announce(agent_run.event("tool.updated", data))

    async def _not_made(self, agent_run: AgentRun, calls: Sequence[AskedCall]) -> None:
        """Refuse calls of a turn that asked the operator first: who knows what the answer is."""
        refusal = KagedError(
            "This call was not made, because the session waits for the operator.",
            code="session_paused",
            fix="make it again if it is still wanted",
        )
        for call in calls:
            await self._keep(
                agent_run,
                call,
                _written({"code": refusal.code, "message": str(refusal)}),
                is_error=True,
            )

    async def _keep(
        self, agent_run: AgentRun, call: AskedCall, text: str, *, is_error: bool
    ) -> None:
        draft = _draft(agent_run, call, text, is_error=is_error)
        agent_run.window.add(await self.transcript.append(agent_run.run.session_id, [draft]))


def error_text(error: ToolError) -> str:
    """Write an error as the model gets it. What a plugin cannot do now is marked as blocked."""
    body = error.as_json()
    written = _written({name: body[name] for name in ("code", "message", "detail")})
    if error.code == "plugin_unavailable":
        return f"{BLOCKED} {written}"
    return written


def _draft(agent_run: AgentRun, call: AskedCall, text: str, *, is_error: bool) -> EntryDraft:
    block: JsonObject = result_block(call, text, is_error=is_error)
    return EntryDraft(
        kind=EntryKind.MESSAGE,
        role=EntryRole.TOOL_RESULT,
        content={"content": [block]},
        agent=agent_run.window_key,
        run_id=agent_run.run.run_id,
    )


def _asks(call: AskedCall) -> bool:
    return call.name in ASKING_TOOLS
