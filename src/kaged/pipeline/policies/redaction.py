"""`SecretRedaction`: takes secrets out of results, depending on the labels of the call."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import Field

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import (
    PromptPosthookPayload,
    ResourcePostFetchPayload,
    ToolPostInvokePayload,
)
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import map_texts
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

KNOWN_SECRETS: Final = {
    "aws_access_key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "github_token": r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b",
    "slack_token": r"\bxox[abprs]-[A-Za-z0-9-]{10,200}\b",
    "bearer_token": r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{12,4096}",
    "private_key": (
        r"-----BEGIN (?:[A-Z]+ ){0,3}PRIVATE KEY-----[^-]{1,16384}"
        r"-----END (?:[A-Z]+ ){0,3}PRIVATE KEY-----"
    ),
    "password_assignment": (
        r"(?i)\b(?:password|passwd|secret|token|api[_-]?key)\b[\"']?\s{0,4}[:=]\s{0,4}"
        r"[\"']?[^\s\"',;]{6,200}"
    ),
    "email": r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}\b",
}
"""Patterns by name. All are bounded, so that no text makes them run away."""

ANY_LABEL = "*"


class RedactionOptions(Options):
    """What to take out, and when."""

    labels: dict[str, list[str]] = Field(default_factory=lambda: {ANY_LABEL: list(KNOWN_SECRETS)})
    patterns: dict[str, str] = Field(default_factory=dict)
    replacement: str = "[redacted]"


class SecretRedaction(Plugin):
    """Replaces secrets in results of tools, prompts and resources.

    `labels` says which patterns apply to data with which label; `*` means always. Needs
    `read_labels` for every label but `*`. `patterns` adds regular expressions of your own.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(RedactionOptions, config)
        if set(options.labels) - {ANY_LABEL} and not (
            {"read_labels", "append_labels"} & config.capabilities
        ):
            raise ValueError("SecretRedaction by label needs the capability read_labels")
        known = {**KNOWN_SECRETS, **options.patterns}
        self._replacement = options.replacement
        self._by_label: dict[str, re.Pattern[str]] = {}
        for label, names in options.labels.items():
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ValueError(f"labels.{label}: unknown pattern {', '.join(unknown)}")
            # Patterns may carry inline flags, which must stand at the start of each.
            self._by_label[label] = re.compile("|".join(_grouped(known[name]) for name in names))

    async def tool_post_invoke(
        self, payload: ToolPostInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Redact a tool's result."""
        return self._redact(payload, "result", extensions)

    async def prompt_post_fetch(
        self, payload: PromptPosthookPayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Redact a rendered prompt."""
        return self._redact(payload, "result", extensions)

    async def resource_post_fetch(
        self,
        payload: ResourcePostFetchPayload,
        context: PluginContext,
        extensions: Extensions | None,
    ) -> PluginResult[Any] | None:
        """Redact a resource's content."""
        return self._redact(payload, "content", extensions)

    def _redact(
        self, payload: Any, field: str, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        security = None if extensions is None else extensions.security
        labels = {ANY_LABEL} if security is None else {ANY_LABEL, *security.labels}
        patterns = [pattern for label, pattern in self._by_label.items() if label in labels]
        if not patterns:
            return None
        before = getattr(payload, field)
        after = map_texts(before, lambda text: self._clean(text, patterns))
        if after is before:
            return None
        return PluginResult(modified_payload=payload.model_copy(update={field: after}))

    def _clean(self, text: str, patterns: list[re.Pattern[str]]) -> str:
        cleaned = text
        for pattern in patterns:
            cleaned = pattern.sub(self._replacement.replace("\\", r"\\"), cleaned)
        return text if cleaned == text else cleaned


def _grouped(pattern: str) -> str:
    if pattern.startswith("(?i)"):
        return f"(?i:{pattern[4:]})"
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return f"(?:{pattern})"
