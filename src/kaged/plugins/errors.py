"""What can be wrong with a plugin, from the caller's side."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError
from kaged.wire.errors import InternalError


class PluginNotFound(KagedError):
    """No plugin of this name is installed."""

    code: ClassVar[str] = "plugin_not_found"


class PluginUnavailable(KagedError):
    """The plugin is not running, or ended before it answered."""

    code: ClassVar[str] = "plugin_unavailable"


class PluginStateRefused(KagedError):
    """The plugin's state does not allow this."""

    code: ClassVar[str] = "plugin_state_refused"


class ReservedPluginName(KagedError):
    """The name belongs to a built-in tool namespace."""

    code: ClassVar[str] = "reserved_plugin_name"


class PluginToolNameCollision(KagedError):
    """Another plugin has a tool of this name already."""

    code: ClassVar[str] = "tool_name_collision"


class ToolNameInvalid(KagedError):
    """A tool of a plugin does not go by the plugin's name, a dot and one segment."""

    code: ClassVar[str] = "tool_name_invalid"


class PluginConfigInvalid(KagedError):
    """A half of the plugin's config does not fit its schema, or the plugin refused it."""

    code: ClassVar[str] = "config_invalid"


class PluginTimedOut(InternalError):
    """The plugin did not answer in time and is restarted; on the wire this is -32603."""

    code: ClassVar[str] = "plugin_timed_out"


class StartFailed(KagedError):
    """A step of the plugin's start failed; `step` and `reason` say which and why.

    `retry` says whether a respawn after a crash may try again (PH-AMB-34); `event` is the audit
    event that told about it already, empty when `plugin.failed` is still to be written.
    """

    code: ClassVar[str] = "plugin_start_failed"

    def __init__(
        self,
        step: str,
        reason: str,
        *,
        retry: bool = False,
        event: str = "",
        fix: str | None = None,
    ) -> None:
        super().__init__(f"{step}: {reason}", fix=fix, step=step, reason=reason)
        self.step = step
        self.reason = reason
        self.retry = retry
        self.event = event
