"""What a debug session is doing, why it ended, where it stopped, and what it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kaged.base import JsonObject
from kaged.toolbox.dap.protocol import Adapter


class State(StrEnum):
    """What the debugged program is doing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    EXITED = "exited"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a debug session ended, as the audit log names it (AT-AUD-10)."""

    DISCONNECT = "disconnect"
    CRASH = "crash"
    RUN_ENDED = "run_ended"


class DebugBackend(Protocol):
    """What a session runs on: the adapter to ask, and how to end it."""

    spare_program: bool  # the program goes on when the session ends

    @property
    def adapter(self) -> Adapter:
        """Whom to ask."""
        ...

    @property
    def can_spare(self) -> bool:
        """Whether a program that it started can go on without it."""
        ...

    async def end(self) -> int | None:
        """End everything; returns the exit code where there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Stop:
    """Where and why the program stopped."""

    reason: str
    thread_id: int
    body: JsonObject
