"""`UnixHttp`: one HTTP/1.1 connection over a Unix socket, for commands that live for one answer.

A general client would take longer to load than the daemon takes to answer. What a command needs is
small: a request with a body of known length, an answer read by the parser that the daemon's own
server uses, and a connection that serves the next request too.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

from httptools.parser import HttpResponseParser
from httptools.parser.errors import HttpParserError

READ_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024


class NotConnected(OSError):
    """Nobody listens on the socket."""


class AnswerBroken(OSError):
    """The other side went away, or speaks something else, before its answer was whole."""


class Answer:
    """What has come of one answer; the parser calls its methods."""

    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.pieces: list[bytes] = []
        self.head_complete = False
        self.keep_alive = False
        self.complete = False

    def on_headers_complete(self) -> None:
        """Note that status and headers are known."""
        self.head_complete = True
        self.keep_alive = self.parser.should_keep_alive()  # forgotten once the answer is whole

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        """Note the end."""
        self.complete = True

    def take(self) -> bytes:
        """Return the body as far as it has come, and forget it."""
        taken, self.pieces = b"".join(self.pieces), []
        return taken


class UnixHttp:
    """Sends requests one after the other; connects when it must."""

    def __init__(self, path: Path, *, connect_timeout_s: float, answer_timeout_s: float) -> None:
        self._path = path
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def request(
        self, method: str, target: str, body: bytes = b"", content_type: str | None = None
    ) -> tuple[int, Generator[bytes]]:
        """Send a request. Returns the status, and the body piece by piece as it comes.

        Raises:
            NotConnected: nobody listens.
            OSError: the connection broke, or no byte came in time.
        """
        connection = self._connected()
        lines = [f"{method} {target} HTTP/1.1", "host: kaged", "accept: */*"]
        if body or method != "GET":
            lines.append(f"content-length: {len(body)}")
        if content_type is not None:
            lines.append(f"content-type: {content_type}")
        answer = Answer()
        try:
            # Who refuses a large body may answer before it has read it; the answer says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + body)
            head_bytes = 0
            while not answer.head_complete:
                head_bytes += _feed(connection, answer)
                if head_bytes > MAX_HEAD_BYTES and not answer.head_complete:
                    raise AnswerBroken("the head of the answer does not end")
        except BaseException:
            self.close()
            raise
        return answer.parser.get_status_code(), self._body(connection, answer)

    def _body(self, connection: socket.socket, answer: Answer) -> Generator[bytes]:
        try:
            while True:
                if piece := answer.take():
                    yield piece
                if answer.complete:
                    break
                _feed(connection, answer)
        except BaseException:
            # What is left of this answer would be read as the next one.
            self.close()
            raise
        if not answer.keep_alive:
            self.close()

    def _connected(self) -> socket.socket:
        if self._socket is not None and not _has_ended(self._socket):
            return self._socket
        self.close()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._connect_timeout_s)
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            raise NotConnected(str(error)) from error
        connection.settimeout(self._answer_timeout_s)
        self._socket = connection
        return connection


def _feed(connection: socket.socket, answer: Answer) -> int:
    data = connection.recv(READ_BYTES)
    if not data:
        raise AnswerBroken("the other side closed the connection before it had answered")
    try:
        answer.parser.feed_data(data)
    except HttpParserError as error:
        raise AnswerBroken("the answer is not HTTP") from error
    return len(data)


def _has_ended(connection: socket.socket) -> bool:
    """Return whether an idle connection was closed, or has said something nobody asked for."""
    return bool(select.select([connection], [], [], 0)[0])
