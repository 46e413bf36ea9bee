"""`StorageQuota`: how much storage one plugin may use (PH-BEY-08)."""

from __future__ import annotations

from kaged.base.lazy_dataclass import dataclass
from kaged.store.guest import GuestLimits
from kaged.wire.lines import LINE_LIMIT_BYTES

ENVELOPE_BYTES = 4096  # room for the rest of the answer's line beside its result


@dataclass(frozen=True, slots=True)
class StorageQuota:
    """Limits per plugin; running into one is answered with -32000 and its name in the data.

    `write_time_s` is shorter because the host's own writes wait for a plugin's.
    """

    database_bytes: int = 256 * 1024 * 1024
    rows: int = 10_000
    result_bytes: int = LINE_LIMIT_BYTES - ENVELOPE_BYTES
    read_time_s: float = 5.0
    write_time_s: float = 2.0

    def reading(self) -> GuestLimits:
        """Return the limits of one query."""
        return GuestLimits(self.read_time_s, self.rows, self.result_bytes, self.database_bytes)

    def writing(self) -> GuestLimits:
        """Return the limits of one transaction."""
        return GuestLimits(self.write_time_s, self.rows, self.result_bytes, self.database_bytes)
