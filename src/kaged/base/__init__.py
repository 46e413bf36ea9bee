"""The ground: `KagedError`, `Clock`, `Ids`, `Tasks` and `JsonValue`. Imports nothing of ours."""

from typing import TYPE_CHECKING

from kaged.base.errors import KagedError
from kaged.base.jsonvalue import JsonObject, JsonValue

if TYPE_CHECKING:
    from kaged.base.clock import Clock, ManualClock, SystemClock, iso_utc
    from kaged.base.ids import Ids
    from kaged.base.tasks import Tasks

__all__ = [
    "Clock",
    "Ids",
    "JsonObject",
    "JsonValue",
    "KagedError",
    "ManualClock",
    "SystemClock",
    "Tasks",
    "iso_utc",
]


def __getattr__(name: str) -> object:
    # Guests in cages and short CLI commands import the ground too; asyncio, the random generator
    # and dates cost them up to tens of milliseconds, so those come on first use.
    if name in {"Clock", "ManualClock", "SystemClock", "iso_utc"}:
        from kaged.base import clock  # noqa: PLC0415 - see above

        return getattr(clock, name)
    if name == "Ids":
        from kaged.base.ids import Ids  # noqa: PLC0415 - see above

        return Ids
    if name == "Tasks":
        from kaged.base.tasks import Tasks  # noqa: PLC0415 - see above

        return Tasks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
