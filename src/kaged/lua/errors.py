"""What can go wrong with scripts, for callers that tell the cases apart."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class ScriptDown(KagedError):
    """The script's worker is not running, or ended before it answered."""

    code: ClassVar[str] = "lua_script_down"


class ScriptCommandNotFound(KagedError):
    """No loaded script has registered that command."""

    code: ClassVar[str] = "lua_command_not_found"


class ScriptCallRefused(KagedError):
    """A script used a function of `kage` wrongly, or the call failed; the words are for it."""

    code: ClassVar[str] = "lua_call_refused"


class PlaceRefused(ScriptCallRefused):
    """A script named a place that lies, or leads, out of the workdir; this goes on record."""


class DialogNotFound(KagedError):
    """The dialog is answered already, was dismissed, or never was."""

    code: ClassVar[str] = "lua_dialog_not_found"
