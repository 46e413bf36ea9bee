"""What the conversation's state machine tells its driver to do. Values, nothing else.

`Initialize`, `FetchConfig`, `DeliverConfig`, `Notify` and `AwaitExit` have an outcome that the
driver feeds back as the next event; the others are done once they are carried out.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.errors import StartFailed


@dataclass(frozen=True, slots=True)
class Initialize:
    """Send `initialize`; feed back `initialize_answered` or `handshake_lost`."""

    params: JsonObject


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Ask the host for the plugin's first config; feed back `config_fetched`."""


@dataclass(frozen=True, slots=True)
class DeliverConfig:
    """Send `config.update`; feed back `config_answered`.

    With `overdue` the driver waits only for a while and then feeds back `config_overdue` first.
    """

    config: JsonObject
    overdue: bool


@dataclass(frozen=True, slots=True)
class AwaitExit:
    """Wait until the process is gone; feed back `exited`."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Send a notification. If `initialized` cannot be sent, feed back `handshake_lost`."""

    method: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The start has failed: close the conversation and raise this."""

    error: StartFailed


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process now: SIGTERM, then SIGKILL."""

    reason: str


@dataclass(frozen=True, slots=True)
class KillUnlessExited:
    """End the process if it still runs after a moment; feed back `end`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forward:
    """Hand a notification of the plugin to whoever listens in the host."""

    kind: str
    params: JsonValue


@dataclass(frozen=True, slots=True)
class Audit:
    """Write an audit event about the plugin; the driver adds its name."""

    event: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class LogLine:
    """Write a log line about the plugin."""

    level: Literal["info", "warning"]
    event: str
    values: JsonObject = field(default_factory=dict[str, JsonValue])


Command: TypeAlias = (
    Initialize
    | FetchConfig
    | DeliverConfig
    | AwaitExit
    | Notify
    | Fail
    | Kill
    | KillUnlessExited
    | Forward
    | Audit
    | LogLine
)
Commands: TypeAlias = tuple[Command, ...]
