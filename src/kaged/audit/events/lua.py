"""Events of the Lua scripts: powers, commands and moves between sessions."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

LUA_CAPABILITIES = Chapter(
    "Lua capabilities",
    (
        event(
            "lua.capability.granted",
            "A script asked for a power at load, the operator grants it, and it is active.",
            "plugin:str capability:str",
        ),
        event(
            "lua.capability.refused",
            "A script asked for a power at load that the operator does not grant.",
            "plugin:str capability:str",
            "reason:str",
        ),
        event(
            "lua.request.refused",
            "A script's worker asked for something its active powers do not cover.",
            "plugin:str request:str",
            "capability:str? reason:str",
        ),
        event(
            "lua.exec",
            "A script ran a command; its output is not written.",
            "plugin:str cmd:cut args_count:int exit_code:int? duration_ms:num",
            "timed_out:bool",
        ),
        event(
            "lua.session.asked",
            "A script asked for a move to another session or a fork.",
            "plugin:str move:str",
            "target:str? entry_id:str?",
        ),
        event(
            "lua.session.applied",
            "The move was made between two turns.",
            "plugin:str move:str",
            "target:str? entry_id:str?",
        ),
        event(
            "lua.session.vetoed",
            "The move was stopped by the veto list.",
            "plugin:str move:str vetoed_by:str",
            "target:str? entry_id:str? reason:str",
        ),
    ),
)
