"""`answer_line`: an answer to the host as a line, whatever is in it."""

from __future__ import annotations

from kaged.wire.errors import ErrorCode
from kaged.wire.framing import Unsendable
from kaged.wire.lines import encode_line
from kaged.wire.messages import Response, failure
from kaged.wire.strictjson import encode_message


def answer_line(answer: Response) -> bytes:
    """Return the line of an answer; one that cannot be sent becomes an error that says so."""
    try:
        return encode_line(encode_message(answer))
    except Unsendable as problem:
        text = f"the answer cannot be sent: {problem}"
        return encode_line(encode_message(failure(answer.id, ErrorCode.INTERNAL_ERROR, text)))
