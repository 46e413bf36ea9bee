"""`Policies`: the extension pipeline around model calls, prompts and agents.

The same rules as around tools: a plugin may refuse, change or let pass, and one that fails ends
the call. Nothing of the pipeline is loaded while none is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kaged.models.turn import AssistantMessage, ModelToolCall, ModelTurn
from kaged.sessions import messages as window_messages
from kaged.sessions.entry import EntryRole
from kaged.sessions.messages import VENDOR_PARTS, WindowMessage, message_of, text_block
from kaged.tools.errors import PipelineRefused
from kaged.tools.policy_answer import policy_answer

if TYPE_CHECKING:
    from kaged.base import Clock, Ids, JsonObject, JsonValue
    from kaged.pipeline.hooked_call import HookedCall
    from kaged.pipeline.origin import CallOrigin
    from kaged.pipeline.payloads.messages import Message
    from kaged.pipeline.pipeline import Pipeline
    from kaged.sessions.agent_run import AgentRun, RunState
    from kaged.tools.session_labels import SessionLabels

_BELOW = ".subagents."
_INPUT, _OUTPUT = "cmf.llm_input", "cmf.llm_output"
WITHHELD: Final = "[BLOCKED] A policy of this daemon withholds this message."

_STOP_REASONS: Final = {
    "stop": "end",
    "tool_calls": "call",
    "length": "max_tokens",
}


class Policies:
    """Opens passages through the pipeline in force; gives None where no plugin waits."""

    def __init__(
        self,
        pipeline: Callable[[], Pipeline | None],
        labels: SessionLabels,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._pipeline = pipeline
        self._labels = labels
        self._clock = clock
        self._ids = ids

    async def model_call(self, agent_run: AgentRun) -> HookedModelCall | None:
        """Open the way around one model call."""
        pipeline = self._waiting(_INPUT, _OUTPUT)
        if pipeline is None:
            return None
        alias = agent_run.model.alias
        place = agent_run.turn, agent_run.asked
        hooked = await self._opened(pipeline, agent_run.run, agent_run.path, alias, place)
        return HookedModelCall(hooked, holds_back=pipeline.has_hooks_for(_OUTPUT))

    async def prompt(self, run: RunState, path: str, text: str, model: str | None = None) -> str:
        """Pass an agent's system prompt. Raises PipelineRefused, ReportedError."""
        pipeline = self._waiting("prompt_pre_fetch", "prompt_post_fetch")
        if pipeline is None:
            return text
        from kaged.pipeline.slots import PromptMetadata  # noqa: PLC0415 - only with a pipeline

        hooked = await self._opened(pipeline, run, path, model)
        described = PromptMetadata(name=path, description="The system prompt of an agent.")
        await policy_answer(hooked.before_prompt(path, {}, described))
        rendered: dict[str, Any] = {
            "messages": [{"role": "system", "content": {"type": "text", "text": text}}]
        }
        hook_outcome = await policy_answer(hooked.after_prompt(path, rendered, described))
        return _prompt_text(hook_outcome.payload.result, text) if hook_outcome.changed else text

    async def agent_call(
        self, run: RunState, path: str, model: str, asked: str | None
    ) -> HookedAgentCall | None:
        """Open the way around the work of one agent; `asked` is what it was asked, shortened."""
        pipeline = self._waiting("agent_pre_invoke", "agent_post_invoke")
        if pipeline is None:
            return None
        hooked = await self._opened(pipeline, run, path, model, (None, asked))
        return HookedAgentCall(hooked, path)

    def _waiting(self, *hooks: str) -> Pipeline | None:
        pipeline = self._pipeline()
        if pipeline is None or not any(pipeline.has_hooks_for(one) for one in hooks):
            return None
        return pipeline

    async def _opened(
        self,
        pipeline: Pipeline,
        run: RunState,
        path: str,
        model: str | None,
        place: tuple[int | None, str | None] = (None, None),
    ) -> HookedCall:
        from kaged.pipeline.hooked_call import HookedCall  # noqa: PLC0415 - only with a pipeline

        known = await self._labels.of(run.session_id)
        keep = self._labels.keeper(run.session_id, source=path, run_id=run.run_id)
        return HookedCall(pipeline, self._origin(run, path, model, known, place), keep)

    def _origin(
        self,
        run: RunState,
        path: str,
        model: str | None,
        labels: frozenset[str],
        place: tuple[int | None, str | None],
    ) -> CallOrigin:
        """Write down what the host knows for certain; nothing of it comes from messages."""
        from kaged.pipeline.origin import (  # noqa: PLC0415 - only with a pipeline
            AgentPlace,
            CallOrigin,
            subject_of,
        )

        return CallOrigin(
            request_id=self._ids.tagged("req"),
            at_ms=self._clock.now_ms(),
            arrival=None if run.identity is None else run.identity.arrival,
            actor=run.identity,
            subject=subject_of(run.identity, run.operator_id),
            agent=AgentPlace(
                run.session_id, tuple(path.split(_BELOW)), turn=place[0], input=place[1]
            ),
            labels=labels,
            source="agent",
            properties={"project_id": run.project_id, "run_id": run.run_id},
            model=model,
        )


class HookedModelCall:
    """One model call and the plugins on both sides of it.

    `holds_back` says that words may not be shown before plugins have seen the whole answer.
    """

    def __init__(self, hooked: HookedCall, *, holds_back: bool) -> None:
        self._hooked = hooked
        self.holds_back = holds_back

    async def clear(
        self, seen: dict[str, WindowMessage | None], messages: Sequence[WindowMessage]
    ) -> list[WindowMessage]:
        """Pass the messages that no plugin has seen yet; returns all as they may go out.

        A tool's result that is refused is withheld, and the agent is told so. Anything else that
        is refused ends the call; in later calls it is withheld.

        Raises:
            PipelineRefused, ReportedError: the call may not be made.
        """
        going: list[WindowMessage] = []
        for message in messages:
            key = message.id if message.stored else f"{message.id} {message.text}"
            if key not in seen:
                try:
                    seen[key] = await self._cleared(message)
                except PipelineRefused:
                    seen[key] = None
                    if message.role is not EntryRole.TOOL_RESULT:
                        raise
            going.append(seen[key] or _withheld(message))
        return going

    async def answered(self, turn: ModelTurn, latency_ms: int) -> ModelTurn:
        """Pass the model's answer; returns the one to go on with. Raises as `clear`."""
        from kaged.pipeline.slots import (  # noqa: PLC0415 - only with a pipeline
            CompletionExtension,
            TokenUsage,
        )

        usage = turn.usage
        completion = CompletionExtension.model_validate(
            {
                "stop_reason": _STOP_REASONS.get(turn.finish_reason),
                "tokens": TokenUsage(
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    total_tokens=usage.input_tokens + usage.output_tokens,
                ),
                "model": turn.model or None,
                "latency_ms": latency_ms,
            }
        )
        said = turn.message
        hook_outcome = await policy_answer(
            self._hooked.after_model(_assistant(said), completion, usage.cost_usd)
        )
        if not hook_outcome.changed:
            return turn
        return replace(turn, message=_said(hook_outcome.payload.message, said))

    async def _cleared(self, message: WindowMessage) -> WindowMessage:
        hook_outcome = await policy_answer(self._hooked.before_model(_shown(message)))
        if not hook_outcome.changed:
            return message
        return _changed(message, hook_outcome.payload.message)


class HookedAgentCall:
    """The work of one agent and the plugins on both sides of it."""

    def __init__(self, hooked: HookedCall, path: str) -> None:
        self._hooked = hooked
        self._path = path

    async def before(
        self, text: str, *, tools: list[str], model: str, system_prompt: str
    ) -> tuple[str, str]:
        """Pass what an agent is asked; returns the message and system prompt to go on with.

        Raises:
            PipelineRefused, ReportedError: the agent is not to be asked.
        """
        hook_outcome = await policy_answer(
            self._hooked.before_agent(
                self._path,
                [{"role": "user", "content": text}],
                tools=tools,
                model=model,
                system_prompt=system_prompt,
            )
        )
        if not hook_outcome.changed:
            return text, system_prompt
        said = [_content(one) for one in hook_outcome.payload.messages]
        prompt = hook_outcome.payload.system_prompt
        return "\n".join(said), system_prompt if prompt is None else str(prompt)

    async def after(self, text: str) -> str:
        """Pass what the agent answered; returns the answer to go on with. Raises as `before`."""
        hook_outcome = await policy_answer(
            self._hooked.after_agent(self._path, [{"role": "assistant", "content": text}])
        )
        if not hook_outcome.changed:
            return text
        return "\n".join(_content(one) for one in hook_outcome.payload.messages)


# -- messages in both shapes -----------------------------------------------------------------------


def _shown(message: WindowMessage) -> Message:
    """Write a message of a window as the pipeline knows messages."""
    from kaged.pipeline.payloads.messages import Message  # noqa: PLC0415 - only with a pipeline

    parts: list[JsonObject] = []
    for block in message.blocks:
        match block.get("type"):
            case "text" | "thinking":
                parts.append({"content_type": block["type"], "text": block.get("text") or ""})
            case "tool_call":
                parts.append(
                    _call_part(str(block.get("id")), str(block.get("name")), block.get("input"))
                )
            case "tool_result_block":
                parts.append(
                    {
                        "content_type": "tool_result",
                        "content": {
                            "tool_call_id": str(block.get("call_id")),
                            "tool_name": str(block.get("name")),
                            "content": block.get("output"),
                            "is_error": block.get("is_error") is True,
                        },
                    }
                )
            case _:
                pass
    role = "tool" if message.role is EntryRole.TOOL_RESULT else message.role.value
    return Message.model_validate({"role": role, "content": parts})


def _changed(message: WindowMessage, now: Message) -> WindowMessage:
    """Take over what a plugin made of a message: its words, and the outcome of its calls."""
    texts = iter([part.text for part in now.content if part.content_type == "text"])
    outputs: dict[str, Any] = {
        part.content.tool_call_id: part.content.content
        for part in now.content
        if part.content_type == "tool_result"
    }
    blocks: list[JsonObject] = []
    for block in message.blocks:
        match block.get("type"):
            case "text":
                blocks.append({**block, "text": next(texts, "")})
            case "tool_result_block":
                output = outputs.get(str(block.get("call_id")), WITHHELD)
                blocks.append({**block, "output": output})
            case window_messages.VENDOR_PARTS:
                pass  # marks on words that are others now
            case _:
                blocks.append(block)
    blocks.extend(text_block(left) for left in texts)
    return message_of(message.id, message.role, blocks, pinned=message.pinned)


def _withheld(message: WindowMessage) -> WindowMessage:
    blocks: list[JsonObject] = [
        {**one, "output": WITHHELD} if one.get("type") == "tool_result_block" else one
        for one in message.blocks
        if one.get("type") not in {"text", VENDOR_PARTS}
    ]
    if message.role is not EntryRole.TOOL_RESULT:
        blocks.append(text_block(WITHHELD))
    return message_of(message.id, message.role, blocks, pinned=message.pinned)


def _assistant(said: AssistantMessage) -> Message:
    from kaged.pipeline.payloads.messages import Message  # noqa: PLC0415 - only with a pipeline

    parts: list[JsonObject] = []
    if said.thinking:
        parts.append({"content_type": "thinking", "text": said.thinking})
    if said.text:
        parts.append({"content_type": "text", "text": said.text})
    parts += [_call_part(one.id, one.name, one.arguments) for one in said.tool_calls]
    return Message.model_validate({"role": "assistant", "content": parts})


def _call_part(call_id: str, name: str, arguments: JsonValue) -> JsonObject:
    asked: JsonObject = {"tool_call_id": call_id, "name": name, "arguments": arguments or {}}
    return {"content_type": "tool_call", "content": asked}


def _said(now: Message, before: AssistantMessage) -> AssistantMessage:
    raw = {one.id: one for one in before.tool_calls}
    calls: list[ModelToolCall] = []
    for part in now.content:
        if part.content_type != "tool_call":
            continue
        asked = part.content
        known = raw.get(asked.tool_call_id)
        same = known is not None and (known.name, known.arguments or {}) == (
            asked.name,
            asked.arguments,
        )
        calls.append(
            known
            if known is not None and same
            else ModelToolCall(asked.tool_call_id, asked.name, dict(asked.arguments))
        )
    return AssistantMessage(
        "\n".join(part.text for part in now.content if part.content_type == "text"),
        tuple(calls),
        "\n".join(part.text for part in now.content if part.content_type == "thinking"),
    )


def _content(message: Any) -> str:
    """Read the words of a message that plugins may have made of anything."""
    content = message.get("content") if isinstance(message, dict) else message.content
    if isinstance(content, str):
        return content
    inner = content.get("text") if isinstance(content, dict) else getattr(content, "text", None)
    return inner if isinstance(inner, str) else str(content)


def _prompt_text(result: Any, before: str) -> str:
    messages = result.get("messages") if isinstance(result, dict) else result.messages
    return "\n".join(_content(one) for one in messages) if messages is not None else before
