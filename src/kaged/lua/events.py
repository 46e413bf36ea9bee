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
    VETO = "veto"


_N, _T, _P, _V = EventKind

_REQUEST: Final = (
    "`{ model, messages, system, tools }` of one request; may change `messages` and `system`, and "
    "leave out `tools`"
)
_SUMMARY: Final = (
    "`{ transcript, instruction, prompt, model, summarized, kept }`; may change the `instruction` "
    "or the `prompt` of a summary, or write the `summary`"
)

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
        "tool_update": (
            _N,
            "`{ id, content, structured = { done, total } }`, as a tool reports it",
        ),
        "tool_result": (_N, "`{ id, name, is_error, text }`"),
        "model_select": (_N, "`{ prev, next, source }`, when a run uses another model"),
        "session_open": (_N, "`{ id, from }`, after a move to another session"),
        "session_close": (_N, "`{ id, to }`, after a move away from a session"),
        "user": (_N, "`{ text }`, what a person wrote"),
        "transform_context": (_T, "list of messages for one request, each with blocks"),
        "before_provider_request": (_T, _REQUEST),
        "compact_prepare": (_T, _SUMMARY),
        "should_stop_after_turn": (_P, "`{ index, had_tool_calls, usage }`; `true` ends the run"),
        "session_before_switch": (_V, "target as text"),
        "session_before_fork": (_V, "entry id as text"),
    }
)
"""Name to kind and payload."""

REFUSED_EVENTS: Final = MappingProxyType(
    {
        "thinking_level_select": "sessions have no thinking levels",
        "permission_mode_select": "permissions come from the project file, not from a mode",
        "user_bash": "the chat runs no shell commands of its own",
        "user_shell": "the chat runs no shell commands of its own",
        "option_set": "there are no options that a script could follow",
        "color_scheme": "the daemon has no color scheme",
        "resources_discover": "skills, templates and themes are not found through scripts",
        "session_before_tree": "a session is left by a switch or a fork, never by its tree",
    }
)
"""Events of other hosts that nothing here fires, with the reason. Subscribing is refused."""

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
