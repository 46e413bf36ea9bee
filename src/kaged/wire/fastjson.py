"""JSON as the host reads and writes it: msgspec on the hot path, the rules of `strictjson`.

Guests never import this module: msgspec is not there for them.
"""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING

import msgspec

from kaged.wire.messages import VERSION, Noise, NoiseReason, classify, to_wire
from kaged.wire.strictjson import MAX_DEPTH, NotJson, is_deeper, unsendable

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue
    from kaged.wire.messages import Incoming, MessageId, Outgoing, Params

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_LONG_BYTES = 64 * 1024
_NEVER_FLOATS = frozenset({str, int, bool, type(None)})


def decode_json(data: bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Decode one JSON value in UTF-8; of a key given twice the last value counts.

    Raises:
        NotJson: the bytes are anything else; the same bytes that `strictjson` refuses.
    """
    try:
        value: JsonValue = _decode(data) if len(data) < _LONG_BYTES else _decode_long(data)
    except UnicodeDecodeError:
        raise NotJson(NoiseReason.ENCODING) from None
    except msgspec.ValidationError:
        raise NotJson(NoiseReason.NUMBER) from None
    except msgspec.DecodeError:
        raise NotJson(NoiseReason.SYNTAX) from None
    except RecursionError:
        raise NotJson(NoiseReason.DEPTH) from None
    if len(data) > 2 * max_depth and is_deeper(value, data, max_depth):
        raise NotJson(NoiseReason.DEPTH)
    return value


def _decode_long(data: bytes) -> JsonValue:
    # Nothing that is being made can be garbage yet, and looking for it takes longer than making it.
    if not gc.isenabled():
        return _decode(data)
    gc.disable()
    try:
        return _decode(data)
    finally:
        gc.enable()


def encode_json(value: JsonValue) -> bytes:
    """Encode a value as compact JSON in one line.

    Raises:
        Unsendable: the value holds something that JSON has no form for, such as NaN.
    """
    return _encoded(value, value)


def decode_message(line: bytes) -> Incoming:
    """Return what a line is. Never raises, whatever the bytes are."""
    try:
        value = decode_json(line)
    except NotJson as error:
        return Noise(line, error.reason)
    return classify(value)


def encode_message(message: Outgoing) -> bytes:
    """Encode a message as compact JSON in one line, without the framing.

    Raises:
        Unsendable: its params, result or data hold something that JSON has no form for.
    """
    return encode_json(to_wire(message))


def encode_call(call_id: MessageId, method: str, params: Params) -> bytes:
    """Encode a request as `encode_message` does, without making one first. Raises Unsendable."""
    if params is None:
        return encode_json({"jsonrpc": VERSION, "id": call_id, "method": method})
    call: JsonObject = {"jsonrpc": VERSION, "id": call_id, "method": method, "params": params}
    return _encoded(call, params)


def _encoded(value: JsonValue, doubtful: JsonValue) -> bytes:
    """Encode a value of which only the `doubtful` part may hold numbers that JSON has not."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise unsendable(error) from None
    # msgspec writes NaN and infinities as null, which would change a value in silence.
    if b"null" in data and _holds_non_finite(doubtful):
        raise unsendable(ValueError())
    return data


def _holds_non_finite(value: JsonValue) -> bool:
    rest = [value]
    for item in rest:  # grows while it is walked
        if isinstance(item, dict):
            rest += [member for member in item.values() if type(member) not in _NEVER_FLOATS]
        elif isinstance(item, list):
            rest += [member for member in item if type(member) not in _NEVER_FLOATS]
        elif isinstance(item, float) and not math.isfinite(item):
            return True
    return False
