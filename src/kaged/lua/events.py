"""The events that scripts can subscribe to, and what becomes of what handlers return."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class EventKind(StrEnum):
    """How the answers of handlers count."""

    NOTIFICATION = "notification"
    TRANSFORM = "transform"
    PREDICATE = "predicate"
    COLLECT = "collect"
    VETO = "veto"


_N, _T, _P, _C, _V = EventKind

EVENTS: Final = MappingProxyType(
    {
        "before_agent_start": (_N, "`{ system_prompt, first_user_message }`, before `agent_start`"),
        "agent_start": (_N, "`{}`, once per run"),
        "agent_end": (_N, "`{ ok }`"),
        "turn_start": (_N, "`{ index }`, once per model call"),
        "turn_end": (_N, "`{ index, had_tool_calls }`, when all of the turn is stored"),
        "message_start": (_N, "`{ id }`"),
        "message_update": (_N, "`{ id, delta }`"),
        "message_end": (_N, "`{ id, usage = { input, output, cache_read, cache_write } }`"),
        "after_provider_response": (_N, "the same as `message_end`, right after it"),
        "tool_call": (_N, "`{ id, name, input }`"),
        "tool_update": (_N, "`{ id, content, structured? }`"),
        "tool_result": (_N, "`{ id, name, is_error, text }`"),
        "model_select": (_N, "`{ prev, next, source }`"),
        "thinking_level_select": (_N, "`{ prev, next, source }`"),
        "permission_mode_select": (_N, "`{ prev, next, source }`"),
        "user_bash": (_N, "`{ cmd, exit_code }`"),
        "user_shell": (_N, "`{ cmd, exit_code }`"),
        "session_open": (_N, "`{ id, from }`, after a move to another session"),
        "session_close": (_N, "`{ id, to }`, after a move away from a session"),
        "option_set": (_N, "never fired here"),
        "color_scheme": (_N, "never fired here"),
        "user": (_N, "`{ text }`, what a person wrote"),
        "resources_discover": (_C, "no argument; gives `{ skills?, templates?, themes? }`"),
        "transform_context": (_T, "list of messages for one request"),
        "before_provider_request": (_T, "`{ messages }` of one request"),
        "compact_prepare": (_T, "never fired here"),
        "should_stop_after_turn": (_P, "`{ index, had_tool_calls, usage }`"),
        "session_before_switch": (_V, "target as text"),
        "session_before_fork": (_V, "entry id as text"),
        "session_before_tree": (_V, "never fired here"),
    }
)
"""Name to kind and payload."""

CONTEXT_EVENTS: Final = frozenset(
    {
        "before_agent_start",
        "message_start",
        "message_update",
        "message_end",
        "after_provider_response",
        "user",
        "transform_context",
        "before_provider_request",
        "compact_prepare",
    }
)
"""What carries conversation text; a strict host gives it only with the capability `context`."""
