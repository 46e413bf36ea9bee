"""`ScriptLimits`: how much a script may take, of everything."""

from __future__ import annotations

from typing import Final

from kaged.base.lazy_dataclass import dataclass

_MIB: Final = 1024 * 1024

MAX_SOURCE_BYTES: Final = 1 * _MIB
MAX_SCRIPTS: Final = 64
MAX_COMMANDS: Final = 100
MAX_READ_BYTES: Final = 2 * _MIB
MAX_WRITE_BYTES: Final = 2 * _MIB
MAX_NOTICE_CHARS: Final = 2000
MAX_QUEUED_EVENTS: Final = 1000
MAX_TOOLS: Final = 32
MAX_TOOL_TEXT_CHARS: Final = 500_000
MAX_PROVIDERS: Final = 8
MAX_PROVIDED_MODELS: Final = 64
MIN_WINDOW_TOKENS: Final = 256
MAX_WINDOW_TOKENS: Final = 100_000_000
MAX_TIMERS: Final = 16
MAX_TIMER_MS: Final = 24 * 3600 * 1000
MAX_MESSAGE_CHARS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """The limits of every script.

    `instructions` is counted inside by Lua itself, for each event, command or load. `compute_s` is
    the wall behind it, kept from outside: time spent waiting for the host does not count. A worker
    beyond it is killed.
    """

    instructions: int = 400_000_000
    compute_s: float = 10.0
    start_s: float = 30.0
    lua_memory_bytes: int = 64 * _MIB
    cage_memory_mb: int = 256
