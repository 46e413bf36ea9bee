"""`WireContext`: who a plugin call, tool call or hook is made for, as its `_context` member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue

CONTEXT_MEMBER = "_context"


class ContextInvalid(KagedError):
    """A call context breaks the contract; the call was not sent."""

    code = "context_invalid"


@dataclass(frozen=True, slots=True)
class WireContext:
    """The five members of `_context`, in the spelling of the wire (PH-CTX-02).

    `project_id`, `agent_path` and `session_id` are all given for a call out of an agent run and
    all None for one of the daemon itself.

    Raises:
        ContextInvalid: only some of the three are given, or there is no request id (PH-CTX-08).
    """

    request_id: str
    operator_id: str | None = None
    project_id: str | None = None
    agent_path: str | None = None
    session_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse a partly filled context before anybody can send it."""
        if not self.request_id:
            raise ContextInvalid("a call context needs a request id")
        absent = {self.project_id is None, self.agent_path is None, self.session_id is None}
        if len(absent) > 1:
            raise ContextInvalid(
                "project_id, agent_path and session_id belong together",
                fix="give all three for a call from an agent run, none for one of the daemon",
            )

    @property
    def from_agent(self) -> bool:
        """Return whether the call comes out of an agent run."""
        return self.agent_path is not None

    def to_wire(self) -> JsonObject:
        """Return the JSON object; all five members are always there (PH-AMB-16)."""
        return {
            "operator_id": self.operator_id,
            "project_id": self.project_id,
            "agent_path": self.agent_path,
            "session_id": self.session_id,
            "request_id": self.request_id,
        }


def with_context(params: JsonObject, context: WireContext) -> JsonObject:
    """Return params with the host's own context; one the caller sent is replaced (PH-CTX-10)."""
    return {**params, CONTEXT_MEMBER: context.to_wire()}


def split_context(params: JsonObject) -> tuple[JsonObject, WireContext | None]:
    """Take the context out of the params that a guest received (PH-SDK-06).

    Gives None for the context when there is none, as in system methods. A missing member reads
    as None (PH-AMB-16).

    Raises:
        ContextInvalid: `_context` is there but is not a valid one.
    """
    if CONTEXT_MEMBER not in params:
        return params, None
    raw = params[CONTEXT_MEMBER]
    if not isinstance(raw, dict):
        raise ContextInvalid("_context is not an object")
    own = {name: value for name, value in params.items() if name != CONTEXT_MEMBER}
    return own, WireContext(
        request_id=_text(raw, "request_id") or "",
        operator_id=_text(raw, "operator_id"),
        project_id=_text(raw, "project_id"),
        agent_path=_text(raw, "agent_path"),
        session_id=_text(raw, "session_id"),
    )


def _text(raw: JsonObject, name: str) -> str | None:
    value: JsonValue = raw.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ContextInvalid(f"_context.{name} is neither text nor null")
