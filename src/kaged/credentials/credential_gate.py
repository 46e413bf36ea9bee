"""`CredentialGate`: opens the gate of each cage that holds credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base import Clock
from kaged.credentials.events import RecordRequest, RequestLog
from kaged.kernel.bindings import CageCredentials, ValueOf

if TYPE_CHECKING:
    from kaged.credentials.cage_gate import CageGate


class CredentialGate:
    """Opens the gates of cages that hold credentials. One per daemon."""

    def __init__(self, record: RecordRequest, clock: Clock) -> None:
        self._record = record
        self._clock = clock

    def open(self, credentials: CageCredentials, value_of: ValueOf, what: str) -> CageGate:
        """Return the gate of one cage; `what` names its owner for the audit log.

        Made before the cage, because its authority's certificate goes into the cage.
        """
        # TLS and the protocols load with the first cage that needs them.
        from kaged.credentials.cage_gate import CageGate  # noqa: PLC0415 - as above

        log = RequestLog(what, self._record, self._clock)
        return CageGate(credentials, value_of, log, self._clock)
