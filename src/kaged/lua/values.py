"""Values between host and script: JSON, with bytes that are no UTF-8 as a marked object.

On the host's side such bytes are text with surrogate escapes, as Python has file names; `shown`
makes them fit for people.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final

from kaged.base import JsonObject, JsonValue

RAW: Final = "\0b64"
_LONG: Final = 16 * 1024
_LONG_ESCAPED: Final = {code: None for code in range(32) if chr(code) not in "\n\r\t"}
_ESCAPED: Final = {**dict.fromkeys(range(32)), ord('"'): None, ord("\\"): None}


def to_wire(value: JsonValue) -> JsonValue:
    """Write a host's value for a script."""
    return _each_text(value, _text_to_wire)


def from_wire(value: JsonValue) -> JsonValue:
    """Read a script's value."""
    if isinstance(value, list):
        return [from_wire(one) for one in value]
    if isinstance(value, dict):
        raw = value.get(RAW)
        if len(value) == 1 and isinstance(raw, str):
            return from_bytes(_bytes_of(raw))
        return {name: from_wire(member) for name, member in value.items()}
    return value


def from_bytes(data: bytes) -> str:
    """Take what a program or a file holds as text that loses nothing."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return the bytes again."""
    return text.encode("utf-8", "surrogateescape")


def shown(text: str) -> str:
    """Make a text fit for people: what is no character becomes a replacement character."""
    return to_bytes(text).decode("utf-8", "replace")


def shown_value(value: JsonValue) -> JsonValue:
    """Do the same for every text in a value."""
    return _each_text(value, shown)


def shown_object(value: JsonObject) -> JsonObject:
    """Do the same for an object."""
    return {shown(name): shown_value(member) for name, member in value.items()}


def like(pattern: JsonValue, value: JsonValue) -> JsonValue:
    """Turn empty objects into empty lists where the pattern has a list: Lua cannot tell them apart.

    Members of a list are held against the member in the same place, or the first one.
    """
    if isinstance(pattern, list):
        if value == {}:
            return []
        if isinstance(value, list) and pattern:
            last = len(pattern) - 1
            return [
                like(pattern[index if index <= last else 0], one) for index, one in enumerate(value)
            ]
    if isinstance(pattern, dict) and isinstance(value, dict):
        return {name: like(pattern.get(name), member) for name, member in value.items()}
    return value


def _each_text(value: JsonValue, change: Callable[[str], JsonValue]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(one, change) for one in value]
    if isinstance(value, dict):
        return {shown(name): _each_text(member, change) for name, member in value.items()}
    return value


def _text_to_wire(text: str) -> JsonValue:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _raw(text)
    if len(text) > _LONG and _written_chars(text) > len(text) * 4 // 3:
        return _raw(text)  # shorter so than with every character escaped
    return text


def _written_chars(text: str) -> int:
    escaped = len(text) - len(text.translate(_ESCAPED))
    long = len(text) - len(text.translate(_LONG_ESCAPED))
    return len(text) + escaped + 4 * long


def _raw(text: str) -> JsonValue:
    return {RAW: base64.b64encode(to_bytes(text)).decode("ascii")}


def _bytes_of(raw: str) -> bytes:
    try:
        return base64.b64decode(raw, validate=True)
    except (binascii.Error, ValueError):
        return b""
