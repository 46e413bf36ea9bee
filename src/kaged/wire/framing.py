"""What all framings share: the `Framer` shape and the errors that end a conversation."""

from __future__ import annotations

from typing import NoReturn, Protocol

from kaged.base.errors import KagedError


class FramingError(KagedError):
    """The bytes broke the framing; nothing after them can be trusted to start at a boundary.

    `complete` holds the messages that arrived whole before the break in the same chunk, so that
    how the bytes were cut into chunks never decides whether a good message is seen.
    """

    code = "protocol.framing"

    complete: tuple[bytes, ...] = ()


class OversizeMessage(FramingError):
    """One message is longer than the connection allows (PH-WIRE-07, SC-AMB-33)."""

    code = "protocol.oversize_message"


class FramerClosed(FramingError):
    """The framer broke earlier and takes no more input."""

    code = "protocol.closed"


class Unsendable(KagedError):
    """We would have to write a message that is too long or is not JSON; nothing was written.

    The code is that of wrong parameters, because the caller's value is what cannot travel
    (PH-AMB-33).
    """

    code = "invalid_params"


class Framer(Protocol):
    """Bytes in, whole messages out; knows nothing about pipes or sockets."""

    @property
    def buffered_bytes(self) -> int:
        """Count the bytes held of a message that is not complete yet."""
        ...

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take what arrived and return every message that is now complete, in order.

        Raises:
            FramingError: the framing is broken; the framer refuses all further input.
        """
        ...

    def encode(self, payload: bytes) -> bytes:
        """Return the bytes to write for one message.

        Raises:
            Unsendable: the payload is over the limit or cannot be framed.
        """
        ...


def refuse_input() -> NoReturn:
    """Raise the error of a framer that is fed after it broke."""
    raise FramerClosed(
        "this connection broke its framing earlier and takes no more input",
        fix="close it and start the peer again",
    )


def refuse_oversize(what: str, size: int, limit_bytes: int) -> NoReturn:
    """Raise Unsendable for an outgoing message over the limit."""
    raise Unsendable(
        f"the {what} would be {size} bytes long and the limit is {limit_bytes}",
        fix="send less in one message",
        size_bytes=size,
        limit_bytes=limit_bytes,
    )
