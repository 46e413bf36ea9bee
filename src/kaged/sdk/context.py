"""`CallContext`: who is asking, as the host says it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, cast

from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue


class Cancellation:
    """Whether the host has given up on one call; the conversation sets it, handlers look at it."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


# Not frozen: one is made for every call, and a frozen one takes three times as long to make.
@dataclass(slots=True, unsafe_hash=True)
class CallContext:
    """The five members of `_context`, plus what belongs to this one call.

    `project_id`, `agent_path` and `session_id` are set together for calls of an agent and are all
    None for calls of the host itself. `config` is the caller's effective configuration, given only
    to plugins whose manifest says `per_call_config: true`.
    """

    operator_id: str | None = None
    project_id: str | None = None
    agent_path: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    config: JsonObject | None = None
    cancellation: Cancellation | None = field(default=None, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether the host has given up on this call, so that a long plain handler may stop.

        A coroutine handler is interrupted with `asyncio.CancelledError` instead.
        """
        return self.cancellation is not None and self.cancellation.requested

    @property
    def user_id(self) -> str | None:
        """The operator under the name of the first draft; use `operator_id`."""
        return self.operator_id

    @property
    def project(self) -> str | None:
        """The project under the name of the first draft; use `project_id`."""
        return self.project_id


def split_params(
    params: JsonObject, cancellation: Cancellation | None = None
) -> tuple[JsonObject, CallContext]:
    """Take `_context` and `_config` out of a call's parameters; the rest is the caller's own."""
    own = dict(params)
    if "_file" in own:
        from kaged.sdk.shared_files import members_of  # noqa: PLC0415 - most plugins share none

        own.update(members_of(own.pop("_file")))
    raw = own.pop("_context", None)
    config = own.pop("_config", None)
    read = cast("dict[str, JsonValue]", raw if isinstance(raw, dict) else {}).get
    return own, CallContext(
        _text(read("operator_id")),
        _text(read("project_id")),
        _text(read("agent_path")),
        _text(read("session_id")),
        _text(read("request_id")),
        cast("JsonObject", config) if isinstance(config, dict) else None,
        cancellation,
    )


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
