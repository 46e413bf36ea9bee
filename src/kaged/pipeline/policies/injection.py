"""`InjectionHeuristics`: results that read like orders to the agent are labelled or stopped.

Heuristics find the lazy attacks and not the clever ones. What holds against both is that untrusted
content is labelled and calls with effects ask; this policy tells the suspicious part of it.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import Field

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import (
    PromptPosthookPayload,
    ResourcePostFetchPayload,
    ToolPostInvokePayload,
)
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names, map_texts
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions, SecurityExtension

MAX_LOOKED_AT_CHARS: Final = 512 * 1024
"""Of one text; the rest counts as suspicious, because nobody looked at it."""

SIGNS: Final = {
    "overrides instructions": (
        r"(?i)\b(?:ignore|disregard|forget|override)\b[^.\n]{0,40}"
        r"\b(?:previous|prior|above|earlier|all|your)\b[^.\n]{0,40}"
        r"\b(?:instructions?|prompts?|rules?|guidelines|context)\b"
    ),
    "speaks as the system": (
        r"(?im)^\s{0,8}(?:#{1,6}\s{0,4}|\[|<\|?|\*\*)?(?:system|developer|assistant)"
        r"(?:\s(?:prompt|message|note|override))?(?:\||\]|>|\*\*)?\s{0,4}:|<\|im_start\|>|\[/?INST\]"
    ),
    "gives a new role": (
        r"(?i)\b(?:you are now|from now on,? you|act as|pretend to be)\b"
        r"[^.\n]{0,60}\b(?:agent|assistant|admin|developer|mode|unrestricted|root|dan)\b"
    ),
    "asks for secrecy": (
        r"(?i)\b(?:do not|don't|never|without)\b[^.\n]{0,20}"
        r"\b(?:tell|telling|mention|mentioning|inform|informing|reveal|revealing|notify|alert)"
        r"[^.\n]{0,20}\b(?:the )?(?:user|human|operator|anyone|person)\b"
    ),
    "asks for secrets": (
        r"(?i)\b(?:send|post|upload|exfiltrate|forward|email|leak|include|append|print|output)\b"
        r"[^.\n]{0,60}\b(?:system prompt|api[ _-]?keys?|passwords?|credentials?|tokens?|"
        r"\.env\b|ssh keys?|private keys?|secrets?)\b"
    ),
    "hides text": (
        r"[\U000E0000-\U000E007F]|[\u200b\u200c\u2060\ufeff]{8}|[\u202a-\u202e\u2066-\u2069]"
    ),
}
"""What a text does that data seldom does. All patterns are bounded."""


class InjectionOptions(Options):
    """Where to look, and what becomes of it."""

    tools: list[str] = Field(default_factory=lambda: ["*"], min_length=1)
    except_tools: list[str] = Field(default_factory=list)
    signs: int = Field(default=1, ge=1, le=len(SIGNS))
    action: Literal["label", "deny"] = "label"
    label: str = Field(default="suspicious", min_length=1, max_length=100)


class InjectionHeuristics(Plugin):
    """Looks for orders in results; `signs` is how many of the kinds must be there.

    With `action: label` (needs `append_labels`) the session is labelled, and a guard with that
    label decides about later calls; with `deny` the result does not reach the agent.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(InjectionOptions, config)
        if options.action == "label" and "append_labels" not in config.capabilities:
            raise ValueError("action label needs the capability append_labels")
        self._looks_at = compile_names(options.tools)
        self._excused = compile_names(options.except_tools)
        self._enough = options.signs
        self._label = options.label if options.action == "label" else None
        self._signs = {name: re.compile(pattern) for name, pattern in SIGNS.items()}

    async def tool_post_invoke(
        self, payload: ToolPostInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Look at a tool's result."""
        return self._judge(payload.name, payload.result, extensions)

    async def prompt_post_fetch(
        self, payload: PromptPosthookPayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Look at a rendered prompt."""
        return self._judge(payload.prompt_id, payload.result, extensions)

    async def resource_post_fetch(
        self,
        payload: ResourcePostFetchPayload,
        context: PluginContext,
        extensions: Extensions | None,
    ) -> PluginResult[Any] | None:
        """Look at a resource's content."""
        return self._judge(payload.uri, payload.content, extensions)

    def _judge(
        self, name: str, content: object, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        if not self._looks_at(name) or self._excused(name):
            return None
        found: set[str] = set()

        def look(text: str) -> str:
            found.update(self._signs_in(text))
            return text

        map_texts(content, look)
        if len(found) < self._enough:
            return None
        if self._label is None:
            named = ", ".join(sorted(found))
            return PluginResult(
                continue_processing=False,
                violation=PluginViolation(
                    reason=f"the result reads like orders to the agent: it {named}",
                    description=f"what {name} returned may have been written to steer the agent",
                    code="suspicious_content",
                    details={"signs": sorted(found), "source": name},
                    http_status_code=403,
                ),
            )
        base = Extensions() if extensions is None else extensions
        security = base.security or SecurityExtension()
        if self._label in security.labels:
            return None
        labelled = security.model_copy(update={"labels": security.labels | {self._label}})
        return PluginResult(modified_extensions=base.model_copy(update={"security": labelled}))

    def _signs_in(self, text: str) -> set[str]:
        looked_at = text[:MAX_LOOKED_AT_CHARS]
        found = {name for name, pattern in self._signs.items() if pattern.search(looked_at)}
        if len(text) > MAX_LOOKED_AT_CHARS:
            found.add("is too long to be looked at")
        return found
