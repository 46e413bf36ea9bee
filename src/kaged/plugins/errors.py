"""What can be wrong with a plugin, from the caller's side."""

from __future__ import annotations

from kaged.base import KagedError
from kaged.wire.errors import InternalError


class PluginNotFound(KagedError):
    """No plugin of this name is installed."""

    code = "plugin_not_found"


class PluginConfigInvalid(KagedError):
    """A half of the plugin's config does not fit its schema, or the plugin refused it."""

    code = "config_invalid"


class PluginTimedOut(InternalError):
    """The plugin did not answer in time and is restarted; on the wire this is -32603."""

    code = "plugin_timed_out"


class StartFailed(KagedError):
    """A step of the plugin's start failed; `step` and `reason` say which and why.

    `retry` says whether a respawn after a crash may try again (PH-AMB-34); `event` is the audit
    event that told about it already, empty when `plugin.failed` is still to be written.
    """

    code = "plugin_start_failed"

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


class TreeRefused(KagedError):
    """A directory holds something that is never copied into the store: `path` says what."""

    code = "plugin_tree_refused"


def consent_missing(message: str, fix: str) -> KagedError:
    """Return the error for files that are not those that the operator said yes to."""
    return KagedError(message, code="plugin_consent_missing", fix=fix)


def store_failed(message: str, fix: str) -> KagedError:
    """Return the error for a change of the plugin store that was not made."""
    return KagedError(message, code="plugin_store_failed", fix=fix)
