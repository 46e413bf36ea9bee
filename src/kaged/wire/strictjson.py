"""JSON as guests read and write it: the standard library, made as strict as the host's decoder.

Python's own decoder takes more than JSON (NaN, infinities, byte order marks, UTF-16, halves of
surrogate pairs) and says nothing about depth. Here all of that is `NotJson`, so that a guest and
the host (`fastjson`) agree about every line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, NoReturn

from kaged.base.errors import KagedError
from kaged.wire.framing import Unsendable
from kaged.wire.messages import Noise, NoiseReason, classify, to_wire

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue
    from kaged.wire.messages import Incoming, Outgoing

# Arrays and objects within each other. Low enough that code which recurses over a value with two
# frames per level stays within Python's own limit.
MAX_DEPTH = 256

# Converting long integers takes quadratic time; Python refuses more digits than this, and msgspec
# counts the sign as well.
_INTEGER_CHARS = 4300
_SHORT_BYTES = 1024
# A value with at most this many members is measured by walking it; a larger one by its brackets.
_WALK_MEMBERS = 512
_HOLDERS = (dict, list)  # once: `dict | list` would be put together for every member
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_SKELETON = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")


class NotJson(KagedError):
    """The bytes are not JSON, or not JSON that we take; `reason` says which rule they broke."""

    code = "protocol.not_json"

    def __init__(self, reason: NoiseReason) -> None:
        super().__init__(f"not JSON ({reason})", reason=reason.value)
        self.reason = reason


def decode_json(data: bytes, *, max_depth: int = MAX_DEPTH, unique_keys: bool = False) -> JsonValue:
    """Decode one JSON value in UTF-8, with white space around it allowed.

    Of a key given twice the last value counts, unless `unique_keys` refuses it.

    Raises:
        NotJson: the bytes are anything else.
    """
    try:
        text = data.decode("utf-8")
        value = _decoded(_decoder(data, unique_keys=unique_keys), text)
    except UnicodeDecodeError:
        raise NotJson(NoiseReason.ENCODING) from None
    except json.JSONDecodeError:
        encoding = data.startswith(b"\xef\xbb\xbf")
        raise NotJson(NoiseReason.ENCODING if encoding else NoiseReason.SYNTAX) from None
    except RecursionError:
        raise NotJson(NoiseReason.DEPTH) from None
    except ValueError:  # an integer over a limit that this process has set lower
        raise NotJson(NoiseReason.NUMBER) from None
    if is_deeper(value, data, max_depth):
        raise NotJson(NoiseReason.DEPTH)
    # Only an escape can make half a surrogate pair, and only a re-encoding finds it.
    if (b"\\ud" in data or b"\\uD" in data) and _has_lone_surrogate(value):
        raise NotJson(NoiseReason.ENCODING)
    return value


def encode_json(value: JsonValue, *, ascii_only: bool = False) -> bytes:
    """Encode a value as compact JSON in one line.

    Raises:
        Unsendable: the value holds something that JSON has no form for, such as bytes or NaN.
    """
    try:
        return "".join((_ASCII if ascii_only else _TEXT)(value)).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise unsendable(error) from None


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


def unsendable(error: Exception) -> Unsendable:
    """Make the error for a value that cannot be encoded; the value itself stays out of it."""
    return Unsendable(
        f"the message holds a value that is not JSON ({type(error).__name__})",
        fix="send null, true, false, finite numbers, text, lists and objects; bytes as base64 text",
    )


def is_deeper(value: JsonValue, data: bytes, limit: int) -> bool:
    """Return whether a value is nested deeper than `limit`; `data` is its JSON.

    Takes time linear in `data`, and next to none for short or flat values, which is why it wants
    both forms: a few members are quickly walked, and many are quickly counted as brackets.
    """
    if len(data) <= 2 * limit:
        return False  # each level takes two brackets, so there is no room for more
    if len(data) <= _SHORT_BYTES and data.count(b"{") + data.count(b"[") <= limit:
        return False  # nor are there as many, and to count them is quicker than to look
    depth = _walked_depth(value)
    if depth is None:
        depth = _bracket_depth(data)
    return depth > limit


def _walked_depth(value: JsonValue) -> int | None:
    """Measure the depth level by level, or return None when there is too much to walk."""
    level = [value] if isinstance(value, _HOLDERS) else []
    depth = 0
    budget = _WALK_MEMBERS
    while level:
        depth += 1
        inner: list[dict[str, JsonValue] | list[JsonValue]] = []
        for holder in level:
            budget -= len(holder) + 1
            if budget < 0:
                return None
            members = holder.values() if isinstance(holder, dict) else holder
            inner += [member for member in members if isinstance(member, _HOLDERS)]
        level = inner
    return depth


def _bracket_depth(data: bytes) -> int:
    """Measure the depth of valid JSON by its brackets alone."""
    if b"\\" in data:
        # Backslashes occur in text only: drop pairs first, so that what is left before a quote
        # really escapes it.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes with nothing between them go without changing what is inside of others. Few texts
    # hold brackets, so mostly no quote is left; else every second piece is text.
    brackets = data.translate(_BRACKETS, _NOT_SKELETON).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    # Each pass takes off the innermost pairs, exactly one level, at the speed of memory. Ordinary
    # data is gone after a few passes; what shrinks slowly is deep, and is counted step by step so
    # that hostile input costs no more than linear time.
    passes = 0
    while brackets:
        shorter = brackets.replace(b"[]", b"")
        if 2 * len(shorter) > len(brackets):
            return passes + max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b")))
        brackets = shorter
        passes += 1
    return passes


def _has_lone_surrogate(value: JsonValue) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _refuse_constant(_name: str) -> NoReturn:
    raise NotJson(NoiseReason.NUMBER)


def _short_integer(text: str) -> int:
    if len(text) > _INTEGER_CHARS:
        raise NotJson(NoiseReason.NUMBER)
    return int(text)


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotJson(NoiseReason.NUMBER)
    return number


def _unique_object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotJson(NoiseReason.DUPLICATE_KEY)
    return members


def _encoder(*, ascii_only: bool) -> Callable[[JsonValue], Iterable[str]]:
    whole = json.JSONEncoder(
        ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), check_circular=False
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return lambda value: (whole.encode(value),)
    # What `encode` makes anew for every value, which takes longer than a short message itself.
    escape = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    part = make(None, whole.default, escape, None, ":", ",", False, False, False)
    return lambda value: part(value, 0)


def _decoded(decoder: json.JSONDecoder, text: str) -> JsonValue:
    # As messages are written there is nothing around them; to look for it costs a third.
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError:
        return decoder.decode(text)
    return value if end == len(text) else decoder.decode(text)


# Made once: to make one takes longer than to encode a short message with it.
_TEXT = _encoder(ascii_only=False)
_ASCII = _encoder(ascii_only=True)
_SHORT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float)
_LAST_KEY_WINS = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite_float, parse_int=_short_integer
)
_UNIQUE_KEYS = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_finite_float,
    parse_int=_short_integer,
    object_pairs_hook=_unique_object,
)


def _decoder(data: bytes, *, unique_keys: bool) -> json.JSONDecoder:
    if unique_keys:
        return _UNIQUE_KEYS
    return _SHORT if len(data) <= _INTEGER_CHARS else _LAST_KEY_WINS
