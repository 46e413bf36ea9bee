"""`OutsidePlan`: how a server is to be run; `OutsideParts`: what all servers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import Spawner, SpawnRequest
from kaged.config.toolrules import glob_matches
from kaged.mcp.approvals import Approvals
from kaged.tools.session_labels import UNTRUSTED

_log = get_logger("kaged.mcp")


@dataclass(frozen=True, slots=True)
class OutsidePlan:
    """How a server is to be run, as the operator wrote it down.

    `fault` says why it cannot be. `allow` and `deny` are globs over the server's own tool names;
    `follow` takes changed tools without asking. `labels` are on everything that it returns.
    `endpoint` is its address, if it is behind HTTP.
    """

    name: str
    request: SpawnRequest | None
    timeout_s: float = 60.0
    output_bytes: int = 256 * 1024
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    follow: bool = False
    agents: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    enabled: bool = True
    fault: str = ""
    reaches_net: bool = False
    labels: frozenset[str] = frozenset({UNTRUSTED})
    endpoint: str | None = None

    def takes(self, original: str) -> bool:
        """Return whether the operator wants a tool at all."""
        wanted = any(glob_matches(one, original) for one in self.allow)
        return wanted and not any(glob_matches(one, original) for one in self.deny)


@dataclass(frozen=True, slots=True)
class OutsideParts:
    """What servers share: where they run, where their doings are recorded, what was agreed to."""

    spawner: Spawner
    audit: AuditLog
    clock: Clock
    approvals: Approvals
    on_tools: Callable[[Any], None]  # takes the server, which is a module above this one
    with_credentials: Callable[[str, SpawnRequest], SpawnRequest] = lambda _, request: request
    """Adds what a server's cage gets of the credentials that it asks for, at each start."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def post(self, event: str, data: JsonObject, request_id: str | None = None) -> None:
        """Record something that has happened already, and that a full disk cannot undo."""
        try:
            self.audit.post(AuditEvent(event, data, request_id=request_id))
        except AuditUnavailable as error:
            _log.error("audit.event_lost", audit_event=event, error=str(error))
