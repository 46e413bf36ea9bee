"""One plugin's entry in the configuration: `PluginConfig` and `PluginCondition`."""

from __future__ import annotations

from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)

from kaged.kernel.extension_caps import parse_extension_capabilities
from kaged.pipeline.modes import OLD_MODE_WORDS, OnError, PluginMode

DEFAULT_PRIORITY = 100
DEFAULT_MAX_CONTENT_SIZE = 10_000_000
MAX_TIMEOUT_S = 3600.0


def normalize_content_type(content_type: str) -> str:
    """Return a content type in lower case and without parameters."""
    return content_type.split(";", 1)[0].strip().lower()


class PluginCondition(BaseModel):
    """When a plugin runs: all given parts must match; several conditions are alternatives."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    server_ids: frozenset[str] | None = None
    tenant_ids: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    prompts: frozenset[str] | None = None
    resources: frozenset[str] | None = None
    agents: frozenset[str] | None = None
    user_patterns: list[str] | None = None
    content_types: list[str] | None = None

    @field_validator("content_types")
    @classmethod
    def _normalise(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else [normalize_content_type(item) for item in value]

    @field_serializer("server_ids", "tenant_ids", "tools", "prompts", "resources", "agents")
    def _sorted(self, value: frozenset[str] | None) -> list[str] | None:
        return None if value is None else sorted(value)


class PluginConfig(BaseModel):
    """What the operator says about one plugin. The host keeps its own; a plugin gets a copy."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str = Field(min_length=1)
    kind: str = Field(min_length=1)
    description: str | None = None
    author: str | None = None
    namespace: str | None = None
    version: str | None = None
    hooks: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)
    mode: PluginMode = PluginMode.SEQUENTIAL
    on_error: OnError = OnError.FAIL
    priority: int = DEFAULT_PRIORITY
    timeout_s: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_S)
    max_content_size: int = DEFAULT_MAX_CONTENT_SIZE
    conditions: list[PluginCondition] = Field(default_factory=list)
    applied_to: Any = None
    capabilities: frozenset[str] = frozenset()
    config: dict[str, Any] | None = None
    mcp: dict[str, Any] | None = None
    grpc: dict[str, Any] | None = None
    unix_socket: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _old_words(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = OLD_MODE_WORDS.get(str(data.get("mode")))
            if known is not None:
                mode, on_error = known
                data = {**data, "mode": mode}
                if on_error is not None:
                    data.setdefault("on_error", on_error)
        return data

    @field_validator("hooks", "tags", "conditions", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return [] if value is None else value

    @field_validator("hooks")
    @classmethod
    def _each_hook_once(cls, value: list[str]) -> list[str]:
        return list(dict.fromkeys(value))

    @field_validator("capabilities", mode="before")
    @classmethod
    def _known_names(cls, value: Any) -> frozenset[str]:
        try:
            return frozenset(parse_extension_capabilities(value))
        except Exception as error:
            # Boundary: pydantic wants ValueError; the message names the faulty and the known ones.
            raise ValueError(str(error)) from error

    @field_serializer("capabilities")
    def _sorted(self, value: frozenset[str]) -> list[str]:
        return sorted(str(name) for name in value)
