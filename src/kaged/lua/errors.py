"""What can go wrong with scripts, for callers that tell the cases apart."""

from __future__ import annotations

from kaged.base import KagedError
from kaged.tools import ToolError


class ScriptDown(KagedError):
    """The script's worker is not running, or ended before it answered."""

    code = "lua_script_down"


class ScriptCallRefused(KagedError):
    """A script used a function of `kage` wrongly, or the call failed; the words are for it."""

    code = "lua_call_refused"


class ScriptToolFailed(ToolError):
    """A tool of a script failed, or its script cannot be asked."""

    code = "lua_tool_failed"


class PlaceRefused(ScriptCallRefused):
    """A script named a place that lies, or leads, out of the workdir; this goes on record."""
