"""`Ask`: what something wants to be allowed, in words, thing by thing, under one digest.

Whoever agrees, agrees to a digest. What two asks of one kind have to do with each other (does the
new one want more?) is decided by the kind, from the keys and values; the words are for people.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kaged.base.jsonvalue import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.describe.sentence import Sentence, SentenceSeverity

MAX_ASKED_THINGS: Final = 5_000
"""More than this nobody reads, so nobody can agree to it."""

_BELOW: Final = " " * 6


@dataclass(frozen=True, slots=True)
class AskedThing:
    """One thing that is asked for; `key` says what it is about, `value` how much of it."""

    key: str
    value: JsonValue
    sentence: Sentence

    def as_json(self) -> JsonObject:
        """Return it for programs and the store."""
        return {"key": self.key, "value": self.value, **self.sentence.as_json()}


@dataclass(frozen=True, slots=True)
class Ask:
    """Everything that is asked for, sorted by key, each key once."""

    things: tuple[AskedThing, ...] = ()

    @classmethod
    def of(cls, things: Iterable[AskedThing]) -> Ask:
        """Make an ask of things in any order. Raises ValueError for a key that comes twice."""
        ordered = tuple(sorted(things, key=lambda one: one.key))
        if len({one.key for one in ordered}) != len(ordered):
            raise ValueError("a key comes twice")
        return cls(ordered)

    @property
    def digest(self) -> str:
        """The SHA-256 of what is asked for; other words for the same leave it as it is."""
        meant: list[JsonValue] = [[one.key, one.value] for one in self.things]
        text = json.dumps(meant, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def by_key(self) -> Mapping[str, AskedThing]:
        """The things by their keys."""
        return MappingProxyType({one.key: one for one in self.things})

    def lines(self, new: Collection[AskedThing] = ()) -> list[str]:
        """Write it as every prompt shows it, dangerous parts flagged, `new` ones marked."""
        marked = {one.key for one in new}
        found: list[str] = []
        for one in self.things:
            mark = "    (NEW)" if one.key in marked else ""
            words = replace(one.sentence, words=f"- {one.sentence.words}{mark}")
            found += words.lines("  ", _BELOW)
        return found

    def as_json(self) -> JsonObject:
        """Return it for programs and the store."""
        return {"digest": self.digest, "things": [one.as_json() for one in self.things]}

    @classmethod
    def from_json(cls, written: JsonValue) -> Ask:
        """Read what `as_json` wrote. Raises ValueError for anything else."""
        things = written.get("things") if isinstance(written, dict) else None
        if not isinstance(things, list):
            raise ValueError("no ask")  # noqa: TRY004 - one error type for bad JSON
        return cls.of(_read(one) for one in things)


def _read(written: JsonValue) -> AskedThing:
    if not isinstance(written, dict) or not isinstance(written.get("key"), str):
        raise ValueError("no thing of an ask")  # noqa: TRY004 - as above
    warning = str(written.get("warning", ""))
    severity = SentenceSeverity.DANGER if written.get("dangerous") else SentenceSeverity.PLAIN
    sentence = Sentence(str(written.get("words", "")), severity, warning)
    return AskedThing(str(written["key"]), written.get("value"), sentence)
