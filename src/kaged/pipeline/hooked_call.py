"""`HookedCall`: one call on its way through the pipeline, before and after, for each kind of call.

The host opens one per call with the call's origin. A refusal is a value (`Decision`), so that the
caller decides how to answer; a faulty policy file and a failed policy plugin are errors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision
from kaged.kernel.describe import Sentence, describe_policy_refusal
from kaged.pipeline.contexts import GlobalContext
from kaged.pipeline.errors import PluginViolationError
from kaged.pipeline.origin import COST_PROPERTY, fill_slots
from kaged.pipeline.payloads import calls
from kaged.pipeline.payloads.base import HOST
from kaged.pipeline.records import APPROVAL_REQUIRED, APPROVER
from kaged.pipeline.slots import MCPExtension, PromptMetadata, ResourceMetadata, ToolMetadata

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kaged.pipeline.contexts import PluginContextTable
    from kaged.pipeline.origin import CallOrigin
    from kaged.pipeline.payloads.messages import Message
    from kaged.pipeline.pipeline import Pipeline
    from kaged.pipeline.records import PluginViolation
    from kaged.pipeline.slots import CompletionExtension, Extensions

KeepLabels: TypeAlias = "Callable[[frozenset[str]], Awaitable[None]]"

DESCRIPTION_CHARS = 500
CODE_CHARS = 100
MAX_RETRY_S = 86_400

_ALLOWED = Decision.allow("pipeline")
TOKEN_DELEGATE = "token_delegate"  # noqa: S105 - the name of a hook, not a token


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """What came out on the other side of one hook.

    `payload` is what to go on with. `changed_by` names the plugins that changed it, oldest first:
    a changed tool call is to be decided again. `violation` is the denier's own words. `denied_by`
    and `refusal` say who refused and why, for the caller; both are None unless somebody did.
    `retry_after_s` is when the same call may be let through; None when waiting does not help.
    """

    decision: Decision
    payload: Any
    changed_by: tuple[str, ...] = ()
    violation: PluginViolation | None = None
    denied_by: str | None = None
    refusal: Sentence | None = None
    retry_after_s: int | None = None

    @property
    def told(self) -> dict[str, Any]:
        """Return what programs are told about a refusal, beside its words."""
        violation = self.violation
        found = {
            "policy": self.denied_by,
            "reason_code": None if violation is None else _line(violation.code, CODE_CHARS),
            "description": None if violation is None else _described(violation),
            "retry_after_s": self.retry_after_s,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def changed(self) -> bool:
        """Return whether any plugin changed the payload."""
        return bool(self.changed_by)

    @property
    def wants_approval(self) -> bool:
        """Return whether the refusal would be none if a person agreed to the call."""
        return self.violation is not None and self.violation.code == APPROVAL_REQUIRED

    @property
    def approver(self) -> str | None:
        """Return who has to agree; None for whomever the call is made for."""
        named = None if self.violation is None else self.violation.details.get(APPROVER)
        return named if isinstance(named, str) and self.wants_approval else None


class HookedCall:
    """One call's way through the pipeline; keeps plugin memory and extensions from pre to post.

    `keep` takes the labels that plugins put on the call's data.
    """

    def __init__(
        self, pipeline: Pipeline, origin: CallOrigin, keep: KeepLabels | None = None
    ) -> None:
        self._pipeline = pipeline
        self._origin = origin
        self._keep = keep
        self._kept = origin.labels
        self._contexts: PluginContextTable | None = None
        self._extensions: Extensions | None = None
        subject = origin.subject
        self._shared = GlobalContext(
            origin.request_id,
            user=None if subject is None else subject.id,
            server_id=origin.scope,
        )

    @property
    def extensions(self) -> Extensions | None:
        """Return the extensions as the plugins left them so far; None before the first hook."""
        return self._extensions

    @property
    def delegates(self) -> bool:
        """Return whether a plugin waits to give tokens to requests that go out."""
        return self._pipeline.has_hooks_for(TOKEN_DELEGATE)

    @property
    def added_headers(self) -> dict[str, str]:
        """Return the headers that plugins added or changed; what the caller sent is not theirs."""
        filled = self._extensions
        return self.changed_headers(
            None if filled is None or filled.http is None else filled.http.headers
        )

    def changed_headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Return those of a payload's headers that are not the caller's."""
        before = self._headers() or {}
        return {
            name.lower(): value
            for name, value in (headers or {}).items()
            if before.get(name.lower()) != value
        }

    @property
    def labels(self) -> frozenset[str]:
        """Return the labels of the call, those added by plugins included."""
        filled = self._extensions
        if filled is None or filled.security is None:
            return self._origin.labels
        return filled.security.labels

    def label(self, labels: frozenset[str]) -> None:
        """Put labels of the host on the call's data, for the hooks that follow."""
        self._kept |= labels
        filled = self._extensions
        if filled is None or filled.security is None:
            self._origin = replace(self._origin, labels=self._origin.labels | labels)
            return
        security = filled.security.model_copy(update={"labels": filled.security.labels | labels})
        self._extensions = filled.model_copy(update={"security": security})

    def approve(self, plugin: str) -> None:
        """Let a plugin know, in the hooks that follow, that a person agreed to the call."""
        tag = frozenset({f"approved:{plugin}"})
        self._origin = replace(self._origin, tags=self._origin.tags | tag)
        filled = self._extensions
        if filled is not None and filled.meta is not None:
            meta = filled.meta.model_copy(update={"tags": filled.meta.tags | tag})
            self._extensions = filled.model_copy(update={"meta": meta})

    async def before_tool(self, name: str, args: dict[str, Any], tool: ToolMetadata) -> HookOutcome:
        """Run `tool_pre_invoke`; returns the call to make, which may be another than asked for."""
        payload = calls.ToolPreInvokePayload.model_validate(
            {"name": name, "args": args, "headers": self._headers()}, context={HOST: True}
        )
        return await self._pass("tool_pre_invoke", payload, MCPExtension(tool=tool))

    async def after_tool(self, name: str, result: Any, tool: ToolMetadata) -> HookOutcome:
        """Run `tool_post_invoke`; returns the result to hand on."""
        payload = calls.ToolPostInvokePayload(name=name, result=result)
        return await self._pass("tool_post_invoke", payload, MCPExtension(tool=tool))

    async def before_prompt(
        self, prompt_id: str, args: dict[str, str], prompt: PromptMetadata
    ) -> HookOutcome:
        """Run `prompt_pre_fetch`."""
        payload = calls.PromptPrehookPayload(prompt_id=prompt_id, args=args)
        return await self._pass("prompt_pre_fetch", payload, MCPExtension(prompt=prompt))

    async def after_prompt(
        self, prompt_id: str, result: Any, prompt: PromptMetadata
    ) -> HookOutcome:
        """Run `prompt_post_fetch`."""
        payload = calls.PromptPosthookPayload(prompt_id=prompt_id, result=result)
        return await self._pass("prompt_post_fetch", payload, MCPExtension(prompt=prompt))

    async def before_resource(
        self, uri: str, metadata: dict[str, Any], resource: ResourceMetadata
    ) -> HookOutcome:
        """Run `resource_pre_fetch`."""
        payload = calls.ResourcePreFetchPayload(uri=uri, metadata=metadata)
        return await self._pass("resource_pre_fetch", payload, MCPExtension(resource=resource))

    async def after_resource(
        self, uri: str, content: Any, resource: ResourceMetadata
    ) -> HookOutcome:
        """Run `resource_post_fetch`."""
        payload = calls.ResourcePostFetchPayload(uri=uri, content=content)
        return await self._pass("resource_post_fetch", payload, MCPExtension(resource=resource))

    async def before_agent(
        self,
        agent_id: str,
        messages: list[Any],
        *,
        tools: list[str] | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> HookOutcome:
        """Run `agent_pre_invoke`."""
        payload = calls.AgentPreInvokePayload.model_validate(
            {
                "agent_id": agent_id,
                "messages": messages,
                "tools": tools,
                "headers": self._headers(),
                "model": model,
                "system_prompt": system_prompt,
                "parameters": parameters or {},
            },
            context={HOST: True},
        )
        return await self._pass("agent_pre_invoke", payload)

    async def after_agent(
        self, agent_id: str, messages: list[Any], tool_calls: list[dict[str, Any]] | None = None
    ) -> HookOutcome:
        """Run `agent_post_invoke`."""
        payload = calls.AgentPostInvokePayload(
            agent_id=agent_id, messages=messages, tool_calls=tool_calls
        )
        return await self._pass("agent_post_invoke", payload)

    async def delegate(
        self, target: str, kind: str, audience: str, permissions: list[str]
    ) -> HookOutcome:
        """Run `token_delegate` for a request that goes out; a token comes as `DelegationResult`."""
        # Loaded late as all payloads about identity are: few set-ups need them.
        from kaged.pipeline.payloads.identity import (  # noqa: PLC0415 - see above
            DelegationPayload,
        )

        arrival = self._origin.arrival
        payload = DelegationPayload.model_validate(
            {
                "target_name": target,
                "target_type": kind,
                "target_audience": audience,
                "required_permissions": permissions,
                "auth_enforced_by": "target",
                "bearer_token": None if arrival is None else arrival.token,
            },
            context={HOST: True},
        )
        return await self._pass(TOKEN_DELEGATE, payload)

    async def before_model(self, message: Message) -> HookOutcome:
        """Pass `cmf.llm_input` with a message that is about to go to the model."""
        return await self._pass_message("llm_input", message, None)

    async def after_model(
        self, message: Message, completion: CompletionExtension, cost_usd: float | None = None
    ) -> HookOutcome:
        """Pass `cmf.llm_output` with the model's answer, its stop reason, usage and cost."""
        if cost_usd is not None:
            self._tell({COST_PROPERTY: f"{cost_usd:.9f}"})
        return await self._pass_message("llm_output", message, completion)

    def _tell(self, properties: Mapping[str, str]) -> None:
        """Put facts on the call that were not known when it began, for the hooks that follow."""
        self._origin = replace(self._origin, properties={**self._origin.properties, **properties})
        filled = self._extensions
        if filled is not None and filled.meta is not None:
            known = {**filled.meta.properties, **properties}
            meta = filled.meta.model_copy(update={"properties": known})
            self._extensions = filled.model_copy(update={"meta": meta})

    async def _pass_message(
        self, hook: str, message: Message, completion: CompletionExtension | None
    ) -> HookOutcome:
        # Thirty models that only set-ups with message hooks need.
        from kaged.pipeline.payloads.messages import (  # noqa: PLC0415 - see above
            MessageHookType,
            MessagePayload,
        )

        payload = MessagePayload(message=message, hook=MessageHookType(hook))
        return await self._pass(f"cmf.{hook}", payload, completion=completion)

    async def _pass(
        self,
        hook: str,
        payload: Any,
        mcp: MCPExtension | None = None,
        completion: CompletionExtension | None = None,
    ) -> HookOutcome:
        if not self._pipeline.has_hooks_for(hook):
            return HookOutcome(_ALLOWED, payload)
        extensions = self._filled(mcp, completion)
        traces = self._pipeline.traces
        try:
            result, contexts = await self._pipeline.invoke_hook(
                hook,
                payload,
                self._shared,
                self._contexts,
                extensions=extensions,
                tracer=None if traces is None else traces.of_call(self._origin),
            )
        except PluginViolationError as error:
            # A plugin that raises its refusal refuses as much as one that returns it.
            denier = error.executions[-1].plugin_name if error.executions else "a plugin"
            retry_s = _retry_after(error.violation, 0)
            decision, refusal = _denied(
                hook, denier, error.violation, error.message, retry_after_s=retry_s
            )
            return HookOutcome(
                decision,
                payload,
                violation=error.violation,
                denied_by=denier,
                refusal=refusal,
                retry_after_s=retry_s,
            )
        self._extensions = result.modified_extensions or extensions
        if self._keep is not None and not self.labels <= self._kept:
            # Also of a call that is refused: what it was about is in the session all the same.
            await self._keep(self.labels - self._kept)
            self._kept = self.labels
        if contexts is not None:
            self._contexts = {**(self._contexts or {}), **contexts}
        if result.continue_processing and result.modified_payload is None:
            return HookOutcome(_ALLOWED, payload)
        records = result.executions
        denier = next((r.plugin_name for r in records if not r.effective_allow), None)
        decision, refusal, retry_s = _ALLOWED, None, None
        if denier is not None:
            retry_s = _retry_after(result.violation, result.retry_delay_ms)
            decision, refusal = _denied(
                hook,
                denier,
                result.violation,
                retry_after_s=result.retry_delay_ms / 1000 or retry_s,
            )
        return HookOutcome(
            decision=decision,
            payload=result.modified_payload or payload,
            changed_by=tuple(r.plugin_name for r in records if r.payload_modified),
            violation=result.violation,
            denied_by=denier,
            refusal=refusal,
            retry_after_s=retry_s,
        )

    def _filled(
        self, mcp: MCPExtension | None, completion: CompletionExtension | None
    ) -> Extensions:
        """Fill the slots for the first hook; later hooks go on with what the plugins left."""
        if self._extensions is None:
            return fill_slots(self._origin, self._pipeline.facts(), mcp=mcp, completion=completion)
        news = {"mcp": mcp, "completion": completion}
        return self._extensions.model_copy(
            update={slot: value for slot, value in news.items() if value is not None}
        )

    def _headers(self) -> Mapping[str, str] | None:
        headers = self._origin.headers
        return None if headers is None else {name.lower(): headers[name] for name in headers}


def _denied(
    hook: str,
    plugin: str,
    violation: PluginViolation | None,
    message: str = "",
    retry_after_s: float | None = None,
) -> tuple[Decision, Sentence]:
    reason = (message or "no reason given") if violation is None else violation.reason
    described = "" if violation is None else _described(violation)
    remedy = f"ask the operator of this daemon about the policy {plugin}"
    if retry_after_s:
        remedy = f"try again in {retry_after_s:g} s"
    decision = Decision.deny("pipeline", f"{hook}: {plugin}: {reason}", remedy)
    words = f"{reason} ({described})" if described and described not in reason else reason
    return decision, describe_policy_refusal(plugin, words, remedy)


def _described(violation: PluginViolation) -> str:
    return _line(violation.description, DESCRIPTION_CHARS)


def _line(text: str, limit: int) -> str:
    found = " ".join(text.split())
    return found if len(found) <= limit else f"{found[: limit - 1]}…"


def _retry_after(violation: PluginViolation | None, delay_ms: int) -> int | None:
    """Return the seconds after which the call may pass, as the plugin says it in one way or two."""
    headers = {} if violation is None else violation.http_headers or {}
    said = next((str(v) for name, v in headers.items() if str(name).lower() == "retry-after"), "")
    seconds = math.ceil(delay_ms / 1000)
    if not seconds and said.isascii() and said.isdigit():
        seconds = int(said[:9])
    return min(seconds, MAX_RETRY_S) or None
