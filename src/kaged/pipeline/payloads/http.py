"""Payloads around an HTTP request, and of the hooks that authenticate and authorise it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import ValidationInfo, field_validator

from kaged.pipeline.payloads.base import HttpHeaderPayload, PluginPayload, warn_of_headers
from kaged.pipeline.results import PluginResult


class HttpHookType(StrEnum):
    """Hooks around an HTTP request."""

    HTTP_PRE_REQUEST = "http_pre_request"
    HTTP_POST_REQUEST = "http_post_request"
    HTTP_AUTH_RESOLVE_USER = "http_auth_resolve_user"
    HTTP_AUTH_CHECK_PERMISSION = "http_auth_check_permission"


class HttpPreRequestPayload(PluginPayload):
    """A request that has come in; plugins may return changed headers."""

    path: str
    method: str
    client_host: str | None = None
    client_port: int | None = None
    headers: HttpHeaderPayload

    @field_validator("headers", mode="before")
    @classmethod
    def _headers(cls, value: object, info: ValidationInfo) -> object:
        return warn_of_headers(value, info, cls.__name__)


class HttpPostRequestPayload(HttpPreRequestPayload):
    """A request with its answer."""

    response_headers: HttpHeaderPayload | None = None
    status_code: int | None = None


class HttpAuthResolveUserPayload(PluginPayload):
    """Credentials of which a plugin may know the user."""

    credentials: dict[str, Any] | None = None
    headers: HttpHeaderPayload
    client_host: str | None = None
    client_port: int | None = None

    @field_validator("headers", mode="before")
    @classmethod
    def _headers(cls, value: object, info: ValidationInfo) -> object:
        return warn_of_headers(value, info, "HttpAuthResolveUserPayload")


class HttpAuthCheckPermissionPayload(PluginPayload):
    """A permission that a plugin may grant or refuse."""

    user_email: str
    permission: str
    resource_type: str | None = None
    team_id: str | None = None
    is_admin: bool = False
    auth_method: str | None = None
    client_host: str | None = None
    user_agent: str | None = None


class HttpAuthCheckPermissionResultPayload(PluginPayload):
    """The answer to a permission question."""

    granted: bool
    reason: str | None = None


HttpHeaderPayloadResult = PluginResult[HttpHeaderPayload]
HttpPreRequestResult = PluginResult[HttpHeaderPayload]
HttpPostRequestResult = PluginResult[HttpHeaderPayload]
HttpAuthResolveUserResult = PluginResult[dict[str, Any]]
HttpAuthCheckPermissionResult = PluginResult[HttpAuthCheckPermissionResultPayload]
