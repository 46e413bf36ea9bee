"""`Redactor`: turns whatever an event carries into small, valid JSON without secrets in it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import cast

import msgspec

from kaged.audit.credentials import ENV_KEYS, REDACTED, fold_key, is_secret_key, mask_secrets
from kaged.audit.event import AuditEvent
from kaged.audit.events.types import EventType, FieldKind
from kaged.audit.sql import redact_sql
from kaged.base import JsonObject, JsonValue

TEXT_LIMIT_CHARS = 1000  # longer text becomes a note of its length and hash (AT-AUD-03)
CONTENT_LIMIT_CHARS = 200  # the same for keys that hold files, messages and bodies
CUT_LIMIT_CHARS = 200  # AT-AUD-26, PH-AUD-07
TAIL_LIMIT_LINES = 50  # PH-AUD-09
TAIL_LINE_LIMIT_CHARS = 400
KEY_LIMIT_CHARS = 120
DEPTH_LIMIT = 12
NODE_LIMIT = 1000
EVENT_LIMIT_CHARS = 48 * 1024
SCAN_LIMIT_CHARS = 64 * 1024
CLEAN_LIMIT_CHARS = 64
CLEAN_LIMIT_TEXTS = 8192
SHORTEST_SECRET_CHARS = 5  # nothing shorter has the shape of a secret: `pwd=x`
KNOWN_SECRET_MIN_CHARS = 6
KNOWN_SECRETS_LIMIT = 256
HASH_LIMIT_CHARS = 8 * 1024 * 1024  # of longer text the beginning is hashed

CONTENT_KEYS = frozenset({
    "body", "content", "contents", "data", "diff", "html", "input", "message", "new_string",
    "old_string", "output", "patch", "prompt", "replacement", "stderr", "stdout", "text",
})  # fmt: skip

# Made by the host, new for nearly every event, and no place for a guest's words: looking at them
# for secrets would be most of the work on a short event.
HOST_IDS = frozenset({"project_id", "request_id", "run_id", "session_id"})
_HOST_TAGS = frozenset({"prj_", "req_", "run_", "ses_"})
HOST_ID_CHARS = 30  # a tag and a ULID
HOST_IDS_LIMIT = 4096  # remembered: every id comes in several events, and twice in each

TOO_DEEP = "[too deep]"
_LISTS = (list, tuple)
_SECRET = -1
_ENVIRONMENT = -2
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_ENCODER = msgspec.json.Encoder(order="deterministic")


class _RedactBudget:
    """What one event may still spend; a hostile payload runs out instead of filling the disk."""

    __slots__ = ("chars", "nodes")

    def __init__(self) -> None:
        self.chars = EVENT_LIMIT_CHARS
        self.nodes = NODE_LIMIT


class Redactor:
    """Makes event data fit to be kept: bounded, valid JSON, without secrets.

    Knows secrets by their key (`api_key`), by their shape (`Bearer …`) and, once `learn` was
    called, by their exact text. Never raises for a value it is given, whatever that is. `rules` is
    what it knows now; who redacts later takes them along.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known: frozenset[str] = frozenset()
        self.rules = Rules(self._known)
        self.learn(*known)

    def learn(self, *secrets: str) -> None:
        """Take these texts out of every later event, wherever they stand.

        Texts under six characters are left out: masking them would mangle ordinary words.
        """
        known = self._known.union(one for one in secrets if len(one) >= KNOWN_SECRET_MIN_CHARS)
        if len(known) > KNOWN_SECRETS_LIMIT:
            raise ValueError(f"more than {KNOWN_SECRETS_LIMIT} known secrets")
        self._know(known)

    def forget(self, *secrets: str) -> None:
        """Stop looking for these texts."""
        self._know(self._known.difference(secrets))

    def encode(self, event: AuditEvent) -> str:
        """Return the event's data as the JSON text that is kept and hashed."""
        return self.rules.encode(event.type, event.data)

    def redact(self, event: AuditEvent) -> JsonObject:
        """Return the event's data as it may be kept; the event itself stays as it is."""
        return self.rules.redact(event.type, event.data)

    def text(self, text: str) -> str:
        """Return a text without what is or looks like a secret; for errors and log lines."""
        return self.rules.text(text)

    def short(self, text: str | None, limit_chars: int = KEY_LIMIT_CHARS) -> str | None:
        """Return an id or name as it may be kept in a column of its own."""
        return self.rules.short(text, limit_chars)

    def _know(self, known: frozenset[str]) -> None:
        self._known = known
        self.rules = Rules(known)


class Rules:
    """What a redactor knew at one moment. Does not change, and may be used in any thread."""

    __slots__ = ("_clean", "_known_pattern")

    def __init__(self, known: frozenset[str]) -> None:
        # Longest first, so that a secret inside another one does not leave a rest behind.
        longest_first = sorted(known, key=len, reverse=True)
        pattern = "|".join(re.escape(one) for one in longest_first)
        self._known_pattern = re.compile(pattern) if known else None
        # Short texts that were looked at and hold no secret. The same names, ids and paths come
        # again and again, and looking is most of the work. What else is known later has rules, and
        # a set, of its own.
        self._clean: set[str] = set()

    def encode(self, kind: EventType, data: JsonObject) -> str:
        """Return an event's data as the JSON text that is kept and hashed."""
        return _ENCODER.encode(self.redact(kind, data)).decode()

    def redact(self, kind: EventType, data: JsonObject) -> JsonObject:
        """Return an event's data as it may be kept; `data` itself stays as it is."""
        shortened, clean = kind.shortened, self._clean
        budget: _RedactBudget | None = None
        # Most values stay as they are: the copy is made at once, and only what changes is put in.
        kept = data.copy()
        for name, value in kept.items():
            if name in shortened:
                budget = budget or _RedactBudget()
                kept[name] = self._shortened(shortened[name], value, budget)
                continue
            if value is None or value is True or value is False:
                continue
            if type(value) is str:
                if value in clean:
                    continue
                if name in HOST_IDS and len(value) == HOST_ID_CHARS and _is_host_id(value):
                    continue
            budget = budget or _RedactBudget()
            kept[name] = self._keyed(name, value, 1, budget)
        return kept

    def text(self, text: str) -> str:
        """Return a text without what is or looks like a secret."""
        return self._masked(_sound(text))

    def short(self, text: str | None, limit_chars: int = KEY_LIMIT_CHARS) -> str | None:
        """Return an id or name as it may be kept in a column of its own."""
        if text is None or text in self._clean:
            return text
        if len(text) == HOST_ID_CHARS and _is_host_id(text):
            return text
        return self._masked(_sound(text[: limit_chars * 2]))[:limit_chars]

    def _shortened(self, kind: FieldKind, value: object, budget: _RedactBudget) -> JsonValue:
        if isinstance(value, str):
            if kind is FieldKind.SQL:
                bare = redact_sql(_sound(value[:SCAN_LIMIT_CHARS]))
                return self._cut(bare, TEXT_LIMIT_CHARS, budget)
            return self._cut(value, CUT_LIMIT_CHARS, budget)
        if isinstance(value, _LISTS):
            return [
                self._cut(line, TAIL_LINE_LIMIT_CHARS, budget) if isinstance(line, str) else "?"
                for line in value[-TAIL_LIMIT_LINES:]
            ]
        return _scalar(value)

    def _keyed(self, key: str, value: object, depth: int, budget: _RedactBudget) -> JsonValue:
        treatment = _treatment(key)
        if treatment < 0:
            if value is None or value is True or value is False:
                return value
            if treatment == _SECRET:
                return REDACTED
            return self._environment(value, depth, budget)
        kind = type(value)
        if kind is int or kind is float:
            return _scalar(value)
        if kind is str and value in self._clean:
            return cast("str", value)
        return self._value(value, treatment, depth, budget)

    def _value(self, value: object, limit: int, depth: int, budget: _RedactBudget) -> JsonValue:
        if isinstance(value, str):
            return self._string(value, limit, budget)
        if isinstance(value, dict):
            return self._object(value, depth, budget) if depth < DEPTH_LIMIT else TOO_DEEP
        if isinstance(value, _LISTS):
            return self._list(value, limit, depth, budget) if depth < DEPTH_LIMIT else TOO_DEEP
        return _scalar(value)

    def _object(self, value: dict[object, object], depth: int, budget: _RedactBudget) -> JsonValue:
        kept: JsonObject = {}
        # {"name": "Authorization", "value": "…"}: the name of a header is its key.
        named = value.get("name", value.get("key"))
        hide_value = isinstance(named, str) and is_secret_key(named[:KEY_LIMIT_CHARS])
        clean = self._clean
        for key, inner in value.items():
            budget.nodes -= 1
            if budget.nodes < 0:
                kept["…"] = f"[{len(value) - len(kept)} more]"
                break
            name = key if type(key) is str and key in clean else self._key(key, budget)
            if hide_value and name == "value":
                kept[name] = REDACTED
            elif type(inner) is str and inner in clean and _treatment(name) >= 0:
                kept[name] = inner
            else:
                kept[name] = self._keyed(name, inner, depth + 1, budget)
        return kept

    def _list(
        self,
        value: list[object] | tuple[object, ...],
        limit: int,
        depth: int,
        budget: _RedactBudget,
    ) -> JsonValue:
        # A header as a pair; a list that the event itself declares is never one.
        if depth > 1 and len(value) == 2 and isinstance(value[0], str):
            name = value[0][:KEY_LIMIT_CHARS]
            if is_secret_key(name) and value[1] is not None:
                return [_sound(name), REDACTED]
        kept: list[JsonValue] = []
        for inner in value:
            budget.nodes -= 1
            if budget.nodes < 0:
                kept.append(f"[{len(value) - len(kept)} more]")
                break
            kept.append(self._value(inner, limit, depth + 1, budget))
        return kept

    def _environment(self, value: object, depth: int, budget: _RedactBudget) -> JsonValue:
        """Keep the names of environment variables and none of their values."""
        if isinstance(value, dict):
            names = [self._key(key, budget) for key in islice(value, NODE_LIMIT)]
            budget.nodes -= len(names)
            return dict.fromkeys(names, REDACTED)
        if isinstance(value, _LISTS):
            return [
                f"{self._key(one.partition('=')[0], budget)}={REDACTED}"
                if isinstance(one, str)
                else REDACTED
                for one in value[:NODE_LIMIT]
            ]
        return REDACTED if isinstance(value, str) else self._value(value, 0, depth, budget)

    def _key(self, key: object, budget: _RedactBudget) -> str:
        if not isinstance(key, str):
            return f"[{type(key).__name__}]"
        if key in self._clean:
            return key
        budget.chars -= min(len(key), KEY_LIMIT_CHARS)
        if budget.chars < 0:
            return "…"
        return self._masked(_sound(str.__str__(key)[:KEY_LIMIT_CHARS]))

    def _string(self, value: str, limit: int, budget: _RedactBudget) -> str:
        text = value if type(value) is str else str.__str__(value)
        length = len(text)
        budget.chars -= min(length, limit)
        if length > limit or budget.chars < 0:
            head = text[:HASH_LIMIT_CHARS].encode("utf-8", "backslashreplace")
            return _note(length, "characters", head)
        return self._masked(text if text.isascii() else _sound(text))

    def _cut(self, value: str, limit: int, budget: _RedactBudget) -> str:
        # Masked before it is cut, so that a cut never leaves half a secret in sight.
        text = self._masked(_sound(str.__str__(value)[:SCAN_LIMIT_CHARS]))[:limit]
        budget.chars -= len(text)
        return text if budget.chars >= 0 else ""

    def _masked(self, text: str) -> str:
        if text in self._clean:
            return text
        masked = text
        if self._known_pattern is not None:
            masked = self._known_pattern.sub(REDACTED, masked)
        if len(masked) >= SHORTEST_SECRET_CHARS:
            masked = mask_secrets(masked)
        if masked is text or masked == text:
            if len(text) <= CLEAN_LIMIT_CHARS:
                if len(self._clean) >= CLEAN_LIMIT_TEXTS:
                    self._clean.clear()
                self._clean.add(text)
            return text
        return masked


@lru_cache(maxsize=4096)
def _treatment(key: str) -> int:
    """Return the length a key's text may have, or one of the two marks; remembered per key."""
    if is_secret_key(key):
        return _SECRET
    folded = fold_key(key)
    if folded in ENV_KEYS:
        return _ENVIRONMENT
    return CONTENT_LIMIT_CHARS if folded in CONTENT_KEYS else TEXT_LIMIT_CHARS


@lru_cache(maxsize=HOST_IDS_LIMIT)
def _is_host_id(text: str) -> bool:
    """Return whether a text of an id's length is one that the host made."""
    return text[:4] in _HOST_TAGS and text[4:].isalnum() and text.isascii()


def _sound(text: str) -> str:
    """Return text that UTF-8 can hold: lone surrogates are written out as escapes."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _scalar(value: object) -> JsonValue:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        # JSON readers agree on 64 bits and no further.
        in_range = _INT_MIN <= value <= _INT_MAX
        return int(value) if in_range else f"[integer of {value.bit_length()} bits]"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _note(len(value), "bytes", bytes(value[:HASH_LIMIT_CHARS]))
    return f"[{type(value).__name__}]"


def _note(length: int, unit: str, raw: bytes) -> str:
    what = "sha256" if length <= HASH_LIMIT_CHARS else f"sha256 of the first {HASH_LIMIT_CHARS}"
    return f"[{length} {unit}, {what}:{hashlib.sha256(raw).hexdigest()}]"
