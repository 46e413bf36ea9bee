"""`SecretEgress`: what looks like a key or a token does not leave in the arguments of a call."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, Final

from pydantic import Field, field_validator

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.redaction import KNOWN_SECRETS
from kaged.pipeline.policies.texts import map_texts
from kaged.pipeline.policies.ways_out import WaysOut
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

FORMATS: Final = {
    **{
        name: KNOWN_SECRETS[name]
        for name in ("aws_access_key", "github_token", "slack_token", "bearer_token", "private_key")
    },
    "api_key": r"\bsk-[A-Za-z0-9_-]{20,200}\b",
    "google_key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "gitlab_token": r"\bglpat-[0-9A-Za-z_-]{20,64}\b",
    "stripe_key": r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{16,128}\b",
    "jwt": r"\beyJ[A-Za-z0-9_-]{8,2048}\.[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,1024}",
    "npm_token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "url_password": r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,64}:[^\s/:@]{3,128}@",
}
"""Formats that say of themselves what they are. All are bounded."""

_WORD = re.compile(r"[A-Za-z0-9+/_=-]{24,512}")
_HEX = re.compile(r"[0-9a-fA-F-]+")
_CLASSES = (re.compile(r"[a-z]"), re.compile(r"[A-Z]"), re.compile(r"[0-9]"))


class SecretOptions(Options):
    """Which calls are looked at, and how closely."""

    tools: list[str] = Field(default_factory=list)
    except_tools: list[str] = Field(default_factory=list)
    formats: list[str] = Field(default_factory=lambda: list(FORMATS))
    entropy: float = Field(default=4.3, ge=0, le=6)
    allow: list[str] = Field(default_factory=list)

    @field_validator("formats")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        if unknown := [name for name in value if name not in FORMATS]:
            raise ValueError(f"unknown format {', '.join(unknown)}; known are {', '.join(FORMATS)}")
        return value

    @field_validator("allow")
    @classmethod
    def _compiles(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return value


class SecretEgress(Plugin):
    """Denies a call that can reach the network and has a secret in its arguments.

    Known formats are found as they are. Other words of 24 characters and more count when they are
    as mixed as a random key: small and capital letters and digits, and at least `entropy` bits for
    each character; 0 turns that off. Hashes and UUIDs are not mixed. `allow` has regular
    expressions for what is no secret.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(SecretOptions, config)
        self._leaves = WaysOut(options.tools, options.except_tools)
        self._formats = {name: re.compile(FORMATS[name]) for name in options.formats}
        self._entropy = options.entropy
        self._allowed = [re.compile(pattern) for pattern in options.allow]

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Deny a call that would take a secret out."""
        if not payload.args or not self._leaves(payload.name, extensions):
            return None
        found: set[str] = set()

        def look(text: str) -> str:
            found.update(self._found_in(text))
            return text

        map_texts(payload.args, look)
        if not found:
            return None
        named = ", ".join(sorted(found))
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation(
                reason=f"the arguments contain what looks like a secret ({named})",
                description=f"{payload.name} can reach the network; take the secret out",
                code="secret_in_arguments",
                details={"found": sorted(found), "tool": payload.name},
                http_status_code=403,
            ),
        )

    def _found_in(self, text: str) -> set[str]:
        found = {
            name
            for name, pattern in self._formats.items()
            if any(not self._is_allowed(one.group()) for one in pattern.finditer(text))
        }
        if self._entropy and any(self._is_random(word) for word in _WORD.findall(text)):
            found.add("random text")
        return found

    def _is_allowed(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in self._allowed)

    def _is_random(self, word: str) -> bool:
        if _HEX.fullmatch(word) or not all(one.search(word) for one in _CLASSES):
            return False
        return entropy_of(word) >= self._entropy and not self._is_allowed(word)


def entropy_of(text: str) -> float:
    """Return Shannon's entropy of a text, in bits for each character."""
    length = len(text)
    return -sum(count / length * math.log2(count / length) for count in Counter(text).values())
