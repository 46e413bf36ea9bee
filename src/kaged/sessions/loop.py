"""`run_agent`: the agent loop, in one function.

compact if full → assemble → ask the model → store its turn → make its tool calls → again
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.describe import brief_policy
from kaged.models.errors import IncompleteAnswer, ModelBadAnswer, ModelContextExceeded
from kaged.models.turn import (
    ModelRequest,
    ModelToolCall,
    ModelTurn,
    TextDelta,
    ThinkingDelta,
    TurnFinished,
    TurnRetried,
)
from kaged.sessions.agent_run import AgentEnd
from kaged.sessions.agent_run_factory import tell
from kaged.sessions.compacting import REQUESTED
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.messages import VENDOR_PARTS, AskedCall, text_block
from kaged.sessions.prompt import assemble

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kaged.base import Clock, Ids, JsonObject
    from kaged.models.turn import ModelEvent
    from kaged.sessions.agent_run import AgentRun
    from kaged.sessions.changed_files import ChangedFiles
    from kaged.sessions.compacting import Compactor
    from kaged.sessions.instructions import ProjectInstructions
    from kaged.sessions.needs import Announcer
    from kaged.sessions.policies import HookedModelCall, Policies
    from kaged.sessions.queued_requests import QueuedRequests
    from kaged.sessions.todo_work import LoopTodos
    from kaged.sessions.toolcalls import ToolRunner
    from kaged.sessions.transcript import Transcript
    from kaged.sessions.transforms import Transforms

MAX_CALLS_PER_TURN: Final = 64
MAX_TURN_CHARS: Final = 1_000_000
MAX_NAME_CHARS: Final = 200
MAX_SAID_CHARS: Final = 4000
"""How much of an incomplete answer the error tells."""
MAX_ROOM_TRIES: Final = 10
"""How often a window is made smaller for one turn; each time by about half."""

NOT_MADE: Final = (
    "This call was not made, because the session waits for the operator. Make it again if it is "
    "still wanted."
)


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop works with; the same for every run of a daemon.

    `between_turns` is called when a turn of a session's top agent has ended and everything of it
    is stored; it says whether people have gone to another session, so that this run is over.
    """

    transcript: Transcript
    tools: ToolRunner
    compactor: Compactor
    todos: LoopTodos
    changed_files: ChangedFiles
    instructions: ProjectInstructions
    transforms: Transforms
    policies: Policies
    announce: Announcer
    clock: Clock
    ids: Ids
    between_turns: Callable[[str], Awaitable[bool]]
    queued: QueuedRequests


async def run_agent(agent_run: AgentRun, parts: LoopParts) -> AgentEnd:
    """Drive one agent until it is done, its limits are reached, or the session waits.

    What it was asked stands in its window. Everything that it says and does is in the transcript
    before the next thing happens.

    Raises:
        KagedError: `step_limit_reached`; it may not go on.
        ModelError: its model did not answer, or not to the end.
        PipelineRefused, ReportedError: a policy ended it.
    """
    while True:
        if agent_run.run.paused:
            return AgentEnd(paused=True)
        require_context_space(agent_run)
        await parts.instructions.enter(agent_run)
        await parts.compactor.check(agent_run)
        agent_run.turns += 1
        parts.announce(agent_run.event("turn.started", _began(agent_run)))
        turn = await ask(agent_run, parts)
        calls = await keep_turn(agent_run, turn, parts)
        if calls and not agent_run.run.paused:
            await parts.tools.run(agent_run, calls)
        elif calls:
            # Another agent of this run asked the operator while this one's model was thinking.
            await parts.tools.close(agent_run, NOT_MADE)
        ended: JsonObject = {"index": agent_run.turns, "had_tool_calls": bool(calls)}
        ended["cost_usd"] = agent_run.run.spending.usage.cost_usd
        parts.announce(agent_run.event("turn.ended", ended))
        if calls and agent_run.run.paused:
            return AgentEnd(paused=True)
        if agent_run.is_top and await parts.between_turns(agent_run.run.session_id):
            return AgentEnd(False, turn.message.text, "switched")
        if agent_run.is_top and await _stops(agent_run, turn, parts, had_calls=bool(calls)):
            return AgentEnd(False, turn.message.text, "stopped")
        told = agent_run.is_top and await take_queued(agent_run, parts)
        if not calls and not told:
            require_whole_answer(turn, agent_run)
            return AgentEnd(False, turn.message.text, turn.finish_reason)


def require_whole_answer(turn: ModelTurn, agent_run: AgentRun) -> None:
    """Check that an agent's last words are an answer, and all of it.

    What there is of one stands in the transcript in any case.

    Raises:
        IncompleteAnswer: `model_answer_cut`, `model_answer_filtered`, `model_answer_empty`.
    """
    alias, said = agent_run.model.alias, turn.message.text
    path, begun = agent_run.path, said[:MAX_SAID_CHARS]
    if turn.finish_reason == "length":
        raise IncompleteAnswer(
            f"The answer of {alias} was cut off at its limit of tokens.",
            code="model_answer_cut",
            fix="send a message to let it go on, or raise max_tokens in the settings of the model",
            agent=path,
            said=begun,
        )
    if turn.finish_reason == "content_filter":
        raise IncompleteAnswer(
            f"The vendor of {alias} stopped the answer because of its content.",
            code="model_answer_filtered",
            fix="ask in other words, or use another model",
            agent=path,
            said=begun,
        )
    if not said.strip():
        raise IncompleteAnswer(
            f"{alias} answered with nothing: no text and no tool call.",
            code="model_answer_empty",
            fix="send a message to let it go on, or use another model",
            agent=path,
            said=begun,
        )


async def take_queued(agent_run: AgentRun, parts: LoopParts) -> bool:
    """Do what was queued for the session; returns whether the agent was told something."""
    session_id = agent_run.run.session_id
    asked = parts.queued.take_compaction(session_id)
    if asked is not None:
        await parts.compactor.compact(agent_run, REQUESTED, asked[0])
    messages = parts.queued.take_messages(session_id)
    for one in messages:
        await tell(agent_run, one.text, parts.transcript)
    return bool(messages)


def require_context_space(agent_run: AgentRun) -> None:
    """Check that the agent may take another step.

    Raises:
        KagedError: `step_limit_reached`; it took all of its own.
    """
    if agent_run.steps >= agent_run.max_steps:
        raise KagedError(
            f"{agent_run.path} took its {agent_run.max_steps} model steps and is not done.",
            code="step_limit_reached",
            fix="send another message to let it go on, or raise max_steps",
            agent=agent_run.path,
            max_steps=agent_run.max_steps,
        )


async def ask(agent_run: AgentRun, parts: LoopParts) -> ModelTurn:
    """Ask the model once; a window that turns out to be too large is made smaller until it fits."""
    hooked = await parts.policies.model_call(agent_run)
    tries = 0
    while True:
        request = await _assembled(agent_run, parts, hooked)
        try:
            turn = await _timed(agent_run, request, parts, hooked)
            break
        except ModelContextExceeded:
            tries += 1
            if tries > MAX_ROOM_TRIES or not await parts.compactor.make_room(agent_run):
                raise  # what is too large is the prompt or the tools
    agent_run.steps += 1
    agent_run.run.spending.add(turn.usage)
    agent_run.gauge.learn(agent_run.request_tokens, turn.usage.input_tokens)
    return turn


async def keep_turn(
    agent_run: AgentRun, turn: ModelTurn, parts: LoopParts
) -> tuple[AskedCall, ...]:
    """Store what the model said; returns the calls it asks for, each under an id of the host.

    Nothing is called before this returns, so that after a crash it is known what was begun.
    """
    said = turn.message
    names = agent_run.snapshot.names
    calls = tuple(
        AskedCall(
            parts.ids.tagged("req"),
            one.id,
            names.own(one.name)[:MAX_NAME_CHARS],
            one.arguments,
            one.raw[:MAX_TURN_CHARS],
        )
        for one in _distinct(said.tool_calls)
    )
    blocks: list[JsonObject] = []
    if said.thinking:
        blocks.append({"type": "thinking", "text": said.thinking[:MAX_TURN_CHARS]})
    if said.text or not calls:
        blocks.append(text_block(said.text[:MAX_TURN_CHARS]))
    blocks += [_call_block(one) for one in calls]
    if said.parts is not None:
        blocks.append({"type": VENDOR_PARTS, **said.parts.as_json()})
    usage = turn.usage
    counted: JsonObject = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.cached_tokens,
        "cost_usd": usage.cost_usd,
    }
    draft = EntryDraft(
        kind=EntryKind.MESSAGE,
        role=EntryRole.ASSISTANT,
        content={
            "content": [*blocks],
            "usage": counted,
            "model": turn.model or agent_run.model.alias,
            "finish_reason": turn.finish_reason,
        },
        agent=agent_run.window_key,
        run_id=agent_run.run.run_id,
    )
    agent_run.window.add(await parts.transcript.append(agent_run.run.session_id, [draft]))
    return calls


# -- own -------------------------------------------------------------------------------------------


async def _stops(
    agent_run: AgentRun, turn: ModelTurn, parts: LoopParts, *, had_calls: bool
) -> bool:
    """Return whether whoever is asked after each turn ends the run."""
    usage: JsonObject = {
        "input": turn.usage.input_tokens,
        "output": turn.usage.output_tokens,
        "cache_read": turn.usage.cached_tokens,
        "cache_write": 0,
    }
    told: JsonObject = {"index": agent_run.turns, "had_tool_calls": had_calls, "usage": usage}
    return await parts.transforms.stops_after(agent_run.run.session_id, told)


async def _assembled(
    agent_run: AgentRun, parts: LoopParts, hooked: HookedModelCall | None
) -> ModelRequest:
    return await assemble(agent_run, parts.todos, parts.changed_files, parts.transforms, hooked)


async def _timed(
    agent_run: AgentRun, request: ModelRequest, parts: LoopParts, hooked: HookedModelCall | None
) -> ModelTurn:
    """Ask, and let policies see the answer with the time that it took."""
    held = hooked is not None and hooked.holds_back
    started_s = parts.clock.monotonic_s()
    turn = await _streamed(agent_run, request, parts, held=held)
    if hooked is None:
        return turn
    latency_ms = round((parts.clock.monotonic_s() - started_s) * 1000)
    passed = await hooked.answered(turn, latency_ms)
    if hooked.holds_back and passed.message.text:
        parts.announce(agent_run.event("text.delta", {"text": passed.message.text}))
    return passed


async def _streamed(
    agent_run: AgentRun, request: ModelRequest, parts: LoopParts, *, held: bool
) -> ModelTurn:
    """Read the model's answer to its end, telling what it says as it says it.

    Raises:
        ModelBadAnswer: the stream ended without an end.
    """
    stream = cast("AsyncGenerator[ModelEvent]", agent_run.model.stream(request))
    async with AsyncExitStack() as stack:
        # However it ends: what was begun and thrown away has been paid for.
        stack.callback(_count_unfinished, agent_run, request)
        events = await stack.enter_async_context(aclosing(stream))
        async for event in events:
            match event:
                case TurnFinished():
                    return event.turn
                case TextDelta():
                    if not held:
                        parts.announce(agent_run.event("text.delta", {"text": event.text}))
                case ThinkingDelta():
                    if not held:
                        parts.announce(agent_run.event("thinking.delta", {"text": event.text}))
                case TurnRetried():
                    data: JsonObject = {
                        "reason": event.reason,
                        "attempt": event.attempt,
                        "wait_s": event.wait_s,
                    }
                    parts.announce(agent_run.event("model.retried", data))
    raise ModelBadAnswer("The model's answer broke off before its end.", agent=agent_run.path)


def _began(agent_run: AgentRun) -> JsonObject:
    """Return what whoever looks on is told as a turn begins."""
    return {
        "index": agent_run.turns,
        "model": agent_run.model.alias,
        "tokens": agent_run.tokens,
        "context_tokens": agent_run.model.context_tokens,
        "cage": brief_policy(agent_run.snapshot.policy, agent_run.run.snapshot.project_root),
    }


def _count_unfinished(agent_run: AgentRun, request: ModelRequest) -> None:
    agent_run.run.spending.add_unfinished(request.unfinished.usage)


def _distinct(calls: tuple[ModelToolCall, ...]) -> list[ModelToolCall]:
    """Return the calls of a turn, up to a limit, each with an id of its own in it."""
    seen: set[str] = set()
    kept: list[ModelToolCall] = []
    for number, call in enumerate(calls[:MAX_CALLS_PER_TURN]):
        id_ = call.id if call.id and call.id not in seen else f"{call.id or 'call'}_{number}"
        seen.add(id_)
        kept.append(call if id_ == call.id else replace(call, id=id_))
    return kept


def _call_block(call: AskedCall) -> JsonObject:
    block: JsonObject = {
        "type": "tool_call",
        "id": call.call_id,
        "name": call.name,
        "input": call.arguments,
        "request_id": call.request_id,
    }
    if call.arguments is None:
        block["raw"] = call.raw
    return block
