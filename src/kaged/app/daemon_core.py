"""`DaemonCore`: what of the daemon is there before any subsystem starts."""

from __future__ import annotations

from collections.abc import Mapping

from kaged.audit import AuditLog, ChainKey
from kaged.base import Clock, Ids, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.config.locations import Locations
from kaged.diagnostics.daemon_state import DaemonState
from kaged.diagnostics.gates import Gates
from kaged.events import EventHub
from kaged.serve.http.services import HttpServices
from kaged.store import Store


@dataclass(frozen=True, slots=True)
class DaemonCore:
    """What is there before any subsystem: what remembers, who is told, and what the files say."""

    places: Locations
    environ: Mapping[str, str]
    state: DaemonState
    store: Store
    audit: AuditLog
    key: ChainKey
    hub: EventHub
    tasks: Tasks
    gates: Gates
    services: HttpServices

    @property
    def clock(self) -> Clock:
        """The daemon's clock."""
        return self.services.clock

    @property
    def ids(self) -> Ids:
        """The daemon's source of ids."""
        return self.services.ids
