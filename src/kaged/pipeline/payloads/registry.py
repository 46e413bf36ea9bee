"""Which payload belongs to which hook, and what a plugin may put in its place: `HookRegistry`."""

from __future__ import annotations

import json
from typing import Any

from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.payloads import calls
from kaged.pipeline.payloads.base import HOST, HttpHeaderPayload, PluginPayload
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.slots import Extensions


@dataclass(frozen=True, slots=True)
class HookKind:
    """A hook that the host knows: its payload, and the type of a changed payload."""

    name: str
    payload: type[PluginPayload]
    modified: type[PluginPayload | dict[str, Any]]


class HookRegistry:
    """The known hooks; any other text is a hook too, with a payload of any type."""

    def __init__(self) -> None:
        self._kinds: dict[str, HookKind] = {kind.name: kind for kind in _built_in_kinds()}

    def kind(self, hook: str) -> HookKind | None:
        """Return what is known about a hook; knowledge of identity and message hooks is fetched."""
        known = self._kinds.get(hook)
        if known is None and (hook in _LATE_HOOKS or hook.startswith("cmf.")):
            for kind in _late_kinds():
                self._kinds.setdefault(kind.name, kind)
            known = self._kinds.get(hook)
        return known

    def register_hook(
        self, hook_type: str, payload_class: type[PluginPayload], result_class: object = None
    ) -> None:
        """Make a hook of your own known; needed only where payloads travel as JSON."""
        del result_class  # one result class serves all hooks
        self._kinds[str(hook_type)] = HookKind(str(hook_type), payload_class, payload_class)

    def get_payload_type(self, hook_type: str) -> type[PluginPayload] | None:
        """Return the payload class of a hook."""
        kind = self.kind(str(hook_type))
        return None if kind is None else kind.payload

    def get_result_type(self, hook_type: str) -> type[PluginResult[Any]] | None:
        """Return the result class of a known hook."""
        return None if self.kind(str(hook_type)) is None else PluginResult

    def is_registered(self, hook_type: str) -> bool:
        """Return whether a hook is known."""
        return self.kind(str(hook_type)) is not None

    def get_registered_hooks(self) -> list[str]:
        """Return the names of the known hooks."""
        return list(self._kinds)

    def json_to_payload(self, hook_type: str, payload: str | dict[str, Any]) -> PluginPayload:
        """Parse a payload that came as JSON. Raises ValueError for an unknown hook or bad data."""
        kind = self.kind(str(hook_type))
        if kind is None:
            raise ValueError(f"No payload type registered for hook: {hook_type}")
        data = json.loads(payload) if isinstance(payload, str) else payload
        return kind.payload.model_validate(data, context={HOST: True})

    def json_to_result(self, hook_type: str, result: str | dict[str, Any]) -> PluginResult[Any]:
        """Parse a result that came as JSON. Raises ValueError for an unknown hook or bad data."""
        kind = self.kind(str(hook_type))
        if kind is None:
            raise ValueError(f"No result type registered for hook: {hook_type}")
        data: Any = json.loads(result) if isinstance(result, str) else result
        if not isinstance(data, dict):
            raise ValueError("a result is a JSON object")  # noqa: TRY004 - one error type for bad JSON
        extensions = data.get("modified_extensions")
        return parse_result(
            kind, data, None if extensions is None else Extensions.model_validate(extensions)
        )


def get_hook_registry() -> HookRegistry:
    """Return the registry of known hooks, one per process."""
    return _registry


def parse_result(
    kind: HookKind | None, data: dict[str, Any], extensions: Extensions | None
) -> PluginResult[Any]:
    """Turn the plain data of a result into a result; unknown keys are ignored.

    Raises:
        ValueError: a field has the wrong shape (pydantic's error is one of these).
    """
    payload = data.get("modified_payload")
    violation = data.get("violation")
    if payload is not None and kind is not None and issubclass(kind.modified, PluginPayload):
        payload = kind.modified.model_validate(payload, context={HOST: True})
    try:
        return PluginResult(
            continue_processing=data.get("continue_processing", True),
            modified_payload=payload,
            modified_extensions=extensions,
            violation=None if violation is None else PluginViolation(**violation),
            metadata=data.get("metadata"),
            denial_metadata=data.get("denial_metadata"),
            http_headers=data.get("http_headers"),
            retry_delay_ms=data.get("retry_delay_ms", 0),
        )
    except TypeError as error:
        raise ValueError(str(error)) from error


def _built_in_kinds() -> tuple[HookKind, ...]:
    http = calls.HttpHookType
    return (
        _same(calls.ToolHookType.TOOL_PRE_INVOKE, calls.ToolPreInvokePayload),
        _same(calls.ToolHookType.TOOL_POST_INVOKE, calls.ToolPostInvokePayload),
        _same(calls.PromptHookType.PROMPT_PRE_FETCH, calls.PromptPrehookPayload),
        _same(calls.PromptHookType.PROMPT_POST_FETCH, calls.PromptPosthookPayload),
        _same(calls.ResourceHookType.RESOURCE_PRE_FETCH, calls.ResourcePreFetchPayload),
        _same(calls.ResourceHookType.RESOURCE_POST_FETCH, calls.ResourcePostFetchPayload),
        _same(calls.AgentHookType.AGENT_PRE_INVOKE, calls.AgentPreInvokePayload),
        _same(calls.AgentHookType.AGENT_POST_INVOKE, calls.AgentPostInvokePayload),
        HookKind(http.HTTP_PRE_REQUEST, calls.HttpPreRequestPayload, HttpHeaderPayload),
        HookKind(http.HTTP_POST_REQUEST, calls.HttpPostRequestPayload, HttpHeaderPayload),
        HookKind(http.HTTP_AUTH_RESOLVE_USER, calls.HttpAuthResolveUserPayload, dict),
        HookKind(
            http.HTTP_AUTH_CHECK_PERMISSION,
            calls.HttpAuthCheckPermissionPayload,
            calls.HttpAuthCheckPermissionResultPayload,
        ),
    )


def _late_kinds() -> tuple[HookKind, ...]:
    # Twenty models that most set-ups never use; their classes are built when a hook needs them.
    from kaged.pipeline.payloads import identity, messages  # noqa: PLC0415 - see above

    hooks = identity.IdentityHookType
    return (
        HookKind(hooks.IDENTITY_RESOLVE, identity.IdentityPayload, identity.IdentityResult),
        HookKind(hooks.TOKEN_DELEGATE, identity.DelegationPayload, identity.DelegationResult),
        _same(messages.MessageHookType.EVALUATE, messages.MessagePayload),
        *(_same(hook, messages.MessagePayload) for hook in messages.CmfHookType),
    )


def _same(hook: str, payload: type[PluginPayload]) -> HookKind:
    return HookKind(str(hook), payload, payload)


_LATE_HOOKS = frozenset({"identity_resolve", "token_delegate", "evaluate"})
_registry = HookRegistry()
