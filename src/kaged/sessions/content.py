"""The content of entries: as JSON text for the store, and as the words that search finds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from kaged.base import JsonObject, JsonValue, KagedError

CONTENT_LIMIT_BYTES = 8 * 1024 * 1024
WORDS_LIMIT_CHARS = 64 * 1024
NODES_LIMIT = 10_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(type=dict[str, object]).decode
# What is worth finding, by the type of a block and the kind of an entry. Not arguments of tools:
# they name files and hold code that the results show again.
_BLOCK_TEXTS = {
    "text": "text",
    "thinking": "text",
    "tool_call": "name",
    "tool_result_block": "output",
}
_KIND_TEXTS = {"title": "title", "label": "text", "compaction": "summary"}


def encode_content(content: JsonObject) -> str:
    """Write content as JSON text.

    Raises:
        KagedError: `entry_invalid`; it holds what JSON has no form for.
        KagedError: `entry_too_large`; it is beyond the limit.
    """
    try:
        text = _encode(content).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair, as a tool's output may have it: only the slow way can write it.
        text = json.dumps(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise KagedError(
            f"the content of an entry is not JSON: {error}", code="entry_invalid"
        ) from error
    # Characters first: that is cheap, and no character takes more than four bytes.
    if len(text) > CONTENT_LIMIT_BYTES // 4 and len(text.encode()) > CONTENT_LIMIT_BYTES:
        raise KagedError(
            f"An entry holds at most {CONTENT_LIMIT_BYTES} bytes.",
            code="entry_too_large",
            fix="shorten it, or keep it in a file and name that",
            limit=CONTENT_LIMIT_BYTES,
        )
    return text


def decode_content(text: str) -> JsonObject:
    """Read what `encode_content` wrote."""
    try:
        return _decode(text)  # pyright: ignore[reportReturnType] - JSON is what was written
    except msgspec.DecodeError:
        return json.loads(text)


def words_of(kind: str, content: JsonObject) -> str:
    """Return the text that full-text search finds an entry by; the same for the same content."""
    pieces: list[str] = []
    left = WORDS_LIMIT_CHARS
    for piece in _pieces(kind, content):
        if left <= 0:
            break
        pieces.append(piece[:left])
        left -= len(pieces[-1]) + 1
    return "\n".join(pieces).encode("utf-8", "replace").decode().replace("\x00", " ")


def stored_words(kind: str, text: str) -> str:
    """Return what a stored entry is found by."""
    return words_of(kind, decode_content(text))


def _pieces(kind: str, content: JsonObject) -> Iterator[str]:
    named = _KIND_TEXTS.get(kind)
    if named is not None:
        value = content.get(named)
        if isinstance(value, str):
            yield value
    blocks = content.get("content")
    if kind != "message" or not isinstance(blocks, list):
        return
    for block in blocks:
        if isinstance(block, dict):
            wanted = _BLOCK_TEXTS.get(str(block.get("type")))
            if wanted is not None:
                yield from _texts(block.get(wanted))


def _texts(value: JsonValue) -> Iterator[str]:
    """Yield the texts in a value, wherever they stand; of a huge one only the first."""
    waiting = [value]
    for _ in range(NODES_LIMIT):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            waiting.extend(reversed(one[:NODES_LIMIT]))
        elif isinstance(one, dict):
            waiting.extend(reversed(list(one.values())[:NODES_LIMIT]))
