"""`VendorParts`: a vendor's marks on the parts of an answer, which it wants back. Pure.

Vendors sign what their models think, and some name each part of an answer. A conversation goes on
as it should only if these come back, in the same order and beside the same words. The words are
kept once, in the message; here stands where each part begins and ends, and what is marked on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass

MAX_PARTS: Final = 512
MAX_MARK_CHARS: Final = 400_000
"""How long the marks of one answer may be together; a longer set is not kept."""

PartKind = Literal["thinking", "text", "call"]
_KINDS: Final = frozenset({"thinking", "text", "call"})


@dataclass(frozen=True, slots=True)
class VendorPart:
    """One part: how many characters of thinking or text it takes, and the vendor's marks on it."""

    kind: PartKind
    chars: int = 0
    id: str | None = None
    signature: str | None = None
    details: JsonObject | None = None

    @property
    def marked(self) -> bool:
        """Whether the vendor put anything on it."""
        return bool(self.id or self.signature or self.details)


@dataclass(frozen=True, slots=True)
class VendorParts:
    """All parts of one answer, and which model of `[models]` gave it (`vendor:name`)."""

    model: str
    vendor: str
    parts: tuple[VendorPart, ...]

    def fits(self, thinking: str, text: str, calls: int) -> bool:
        """Return whether these are the parts of a message that thinks, says and calls this much.

        A policy or a script may have changed what was said since.
        """
        sums = {
            kind: sum(one.chars for one in self.parts if one.kind == kind)
            for kind in ("thinking", "text")
        }
        called = sum(one.kind == "call" for one in self.parts)
        return (sums["thinking"], sums["text"], called) == (len(thinking), len(text), calls)

    def as_json(self) -> JsonObject:
        """Write them as entries keep them."""
        written: list[JsonValue] = [_written(one) for one in self.parts]
        return {"model": self.model, "vendor": self.vendor, "parts": written}


def kept_parts(model: str, vendor: str, parts: Sequence[VendorPart]) -> VendorParts | None:
    """Return the parts of an answer if they have to be kept: something is marked, and not too much.

    Marks that are no JSON, or larger than any vendor's, are none that anybody wants back.
    """
    if not any(one.marked for one in parts) or len(parts) > MAX_PARTS:
        return None
    made = VendorParts(model, vendor, tuple(parts))
    try:
        size = len(msgspec.json.encode(made.as_json()))
    except (TypeError, ValueError, RecursionError):
        return None
    return made if size <= MAX_MARK_CHARS else None


def parts_of_json(value: JsonValue) -> VendorParts | None:
    """Read parts out of an entry; None when they are none, or not to be trusted."""
    if not isinstance(value, dict):
        return None
    model, vendor, listed = value.get("model"), value.get("vendor"), value.get("parts")
    if not isinstance(model, str) or not isinstance(vendor, str) or not isinstance(listed, list):
        return None
    parts = [_read(one) for one in listed[: MAX_PARTS + 1]]
    good = [one for one in parts if one is not None]
    if len(good) != len(listed) or len(good) > MAX_PARTS:
        return None
    return VendorParts(model, vendor, tuple(good))


def _written(part: VendorPart) -> JsonObject:
    pairs: JsonObject = {
        "kind": part.kind,
        "chars": part.chars,
        "id": part.id,
        "signature": part.signature,
        "details": part.details,
    }
    return {name: value for name, value in pairs.items() if value}


def _read(value: JsonValue) -> VendorPart | None:
    if not isinstance(value, dict):
        return None
    kind, chars = value.get("kind"), value.get("chars", 0)
    if kind not in _KINDS or not isinstance(chars, int) or chars < 0:
        return None
    id_, signature, details = value.get("id"), value.get("signature"), value.get("details")
    return VendorPart(
        kind,  # type: ignore[arg-type]  # one of the three, as was just checked
        chars,
        id_ if isinstance(id_, str) else None,
        signature if isinstance(signature, str) else None,
        details if isinstance(details, dict) else None,
    )
