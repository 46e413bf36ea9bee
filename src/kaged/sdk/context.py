"""`CallContext`: who is asking, as the host says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
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

    @property
    def user_id(self) -> str | None:
        """The operator under the name of the first draft; use `operator_id`."""
        return self.operator_id

    @property
    def project(self) -> str | None:
        """The project under the name of the first draft; use `project_id`."""
        return self.project_id


def split_params(params: JsonObject) -> tuple[JsonObject, CallContext]:
    """Take `_context` and `_config` out of a call's parameters; the rest is the caller's own."""
    own = dict(params)
    raw = own.pop("_context", None)
    config = own.pop("_config", None)
    members = cast("dict[str, JsonValue]", raw) if isinstance(raw, dict) else {}
    return own, CallContext(
        operator_id=_text(members, "operator_id"),
        project_id=_text(members, "project_id"),
        agent_path=_text(members, "agent_path"),
        session_id=_text(members, "session_id"),
        request_id=_text(members, "request_id"),
        config=cast("JsonObject", config) if isinstance(config, dict) else None,
    )


def _text(members: dict[str, JsonValue], key: str) -> str | None:
    value = members.get(key)
    return value if isinstance(value, str) else None


__all__ = ["CallContext", "split_params"]
