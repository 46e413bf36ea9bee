"""`HostParts`: what every plugin of one host shares, handed in by the composition root."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock, Ids, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import Spawner
from kaged.peer import ConnectionLimits
from kaged.pipeline.policy_pipeline import ActivePipeline
from kaged.plugins.event_exchange import EventExchange
from kaged.plugins.starts import Starts

if TYPE_CHECKING:
    from kaged.plugins.storage import StorageBroker
    from kaged.tools.session_labels import SessionLabels


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The numbers of the plugin host; the defaults are the specification's."""

    daemon_version: str
    log_level: str = "info"
    runtimes: Mapping[str, Path] = field(default_factory=dict[str, Path])
    files_dir: Path | None = None  # where folders that plugins share with the host are made
    initialize_timeout_s: float = 10.0  # PH-HAND-15
    request_timeout_s: float = 30.0  # PH-METH-22
    ping_timeout_s: float = 5.0  # PH-SUP-15
    config_patience_s: float = 2.0  # PH-AMB-13
    health_failures: int = 3  # PH-SUP-18
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    restart_spread: Callable[[], float] | None = random.random  # PH-BEY-11; None for none


def _nobody(plugin: str, kind: str, params: JsonValue) -> None:
    """Forward a notification to nobody."""


@dataclass(frozen=True, slots=True)
class HostParts:
    """Collaborators of the plugin host. `sleep` is handed in so that tests own the backoff.

    `labels` are those of sessions; None where there are no sessions.
    """

    spawner: Spawner
    audit: AuditLog
    clock: Clock
    ids: Ids
    settings: HostSettings
    storage: StorageBroker | None = None
    labels: SessionLabels | None = None
    active_pipeline: ActivePipeline = field(default_factory=ActivePipeline)
    on_notification: Callable[[str, str, JsonValue], None] = _nobody
    starts: Starts = field(default_factory=Starts)
    events: EventExchange = field(default_factory=EventExchange)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    log: Any = field(default_factory=lambda: get_logger("kaged.plugins"))

    def post(self, event: str, data: JsonObject, request_id: str | None = None) -> None:
        """Write an audit event that gates nothing."""
        self.audit.post(AuditEvent(event, data, request_id=request_id))
