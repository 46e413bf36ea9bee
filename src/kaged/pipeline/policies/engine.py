"""`EnginePolicy`: a policy whose decision is made by an engine that others wrote.

OPA and Cedar are asked with the same document: the hook, its payload, and the extensions that the
policy's capabilities show. Whatever is no clear yes is a no.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.remote import to_json
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

MAX_TEXT_CHARS = 2_000
"""Of a reason or description that an engine gives."""

_MAX_CODE_CHARS = 100


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an engine decided, in its own words if it gave any."""

    allowed: bool
    reason: str = ""
    description: str = ""
    code: str = ""
    details: JsonObject | None = None


class NoDecision(RuntimeError):
    """An engine gave no decision."""


class EnginePolicy(Plugin, ABC):
    """Asks an engine at every hook that its configuration lists; a subclass says which engine."""

    engine = ""

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        for hook in config.hooks:
            setattr(self, hook, partial(self._decide, hook))

    @abstractmethod
    async def ask(self, question: JsonObject) -> Verdict:
        """Return the decision. Raises NoDecision where there is none; `on_error` applies."""

    async def _decide(
        self, hook: str, payload: Any, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        verdict = await self.ask(question(hook, payload, context, extensions))
        if verdict.allowed:
            return None
        reason = verdict.reason[:MAX_TEXT_CHARS] or f"{self.engine} does not allow it"
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason=reason,
                description=verdict.description[:MAX_TEXT_CHARS] or reason,
                code=verdict.code[:_MAX_CODE_CHARS] or "denied_by_engine",
                details={"engine": self.engine, **(verdict.details or {})},
                http_status_code=403,
            ),
        )


def question(
    hook: str, payload: Any, context: PluginContext, extensions: Extensions | None
) -> JsonObject:
    """Return the document about a call; slots without a value are left out, not null."""
    shown: JsonValue = {} if extensions is None else _given(to_json(extensions))
    return {
        "hook": hook,
        "request_id": context.global_context.request_id,
        "payload": to_json(payload),
        "extensions": shown,
    }


def _given(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {name: _given(item) for name, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value
