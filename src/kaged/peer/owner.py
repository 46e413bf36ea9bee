"""`Owner`: whoever runs a peer, as its connection needs it; `ConnectionLimits`: its patience."""

from __future__ import annotations

from typing import Protocol

from kaged.base import JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.wire.correlator import Ignored
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response
from kaged.wire.value_count import MESSAGE_VALUES

# Output we hold for a peer that is slow to read; four of the longest lines.
WRITE_BUFFER_LIMIT_BYTES = 16 * 1024 * 1024


class Owner(Protocol):
    """Whoever runs the peer: answers its requests and hears what it does unasked.

    `answer` may raise KagedError (or RpcError for an exact number) to refuse. The other methods
    must not raise and must not block.
    """

    async def answer(self, request: Request) -> JsonValue:
        """Answer one request of the peer."""
        ...

    def asked(self, request: Request) -> None:
        """Called when a request arrives, in order with everything else; `answer` comes later."""
        ...

    def notified(self, notification: Notification) -> None:
        """Called for each notification of the peer."""
        ...

    def refused(self, refused: Refused) -> None:
        """Called for a line that is no message; it was already answered where that is due."""
        ...

    def ignored(self, response: Response, why: Ignored) -> None:
        """Called when an answer matches no open request."""
        ...

    def out_of_step(self, message_id: MessageId) -> None:
        """Called once, when the peer's request ids do not count up from 1."""
        ...

    def broke(self, error: KagedError) -> None:
        """Called when the conversation cannot go on: framing broken, or the peer does not read."""
        ...

    def closed(self) -> None:
        """Called when the peer's output ended; open requests have failed already."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How much of the peer's doing we put up with."""

    open_calls: int = 64
    open_requests: int = 64
    unasked_per_s: int = 5000
    write_buffer_bytes: int = WRITE_BUFFER_LIMIT_BYTES
    values: int = MESSAGE_VALUES
