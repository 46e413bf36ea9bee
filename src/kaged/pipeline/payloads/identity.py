"""Payloads of the hooks that turn a token into a subject, and a subject into another token."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from kaged.pipeline.payloads.base import PluginPayload
from kaged.pipeline.results import PluginResult
from kaged.pipeline.slots import DelegationExtension, SubjectExtension


class IdentityHookType(StrEnum):
    """Hooks about identity."""

    IDENTITY_RESOLVE = "identity_resolve"
    TOKEN_DELEGATE = "token_delegate"  # noqa: S105 - the name of a hook, not a token


class IdentityPayload(PluginPayload):
    """A credential whose owner is to be found; the token never shows in a dump or repr."""

    raw_token: SecretStr
    source: str = "bearer"
    headers: dict[str, str] = Field(default_factory=dict)
    client_host: str | None = None
    client_port: int | None = None


class IdentityResult(PluginPayload):
    """The owner of a credential, or why there is none."""

    subject: SubjectExtension | None = None
    delegation: DelegationExtension | None = None
    rejected: bool = False
    reject_status: int = 401
    reject_reason: str = ""
    raw_claims: dict[str, Any] = Field(default_factory=dict)


class AttenuationConfig(BaseModel):
    """How far a delegated token is to be narrowed."""

    model_config = ConfigDict(frozen=True)

    capabilities: list[str] = Field(default_factory=list)
    resource_template: str | None = None
    actions: list[str] = Field(default_factory=list)
    ttl_seconds: int | None = None


class DelegationPayload(PluginPayload):
    """A target that needs a token of its own."""

    target_name: str
    target_type: str = "tool"
    target_audience: str | None = None
    required_permissions: list[str] = Field(default_factory=list)
    trust_domain: str | None = None
    auth_enforced_by: str = "caller"
    route_attenuation: AttenuationConfig | None = None
    bearer_token: SecretStr | None = None


class DelegationResult(PluginPayload):
    """The token for the target, and the chain that led to it."""

    delegated_token: str | None = None
    delegation_update: DelegationExtension = Field(default_factory=DelegationExtension)
    forwarded_headers: dict[str, str] = Field(default_factory=dict)
    cache_key: str | None = None
    cache_ttl: int | None = None


IdentityResolveResult = PluginResult[IdentityResult]
TokenDelegateResult = PluginResult[DelegationResult]
