"""The compactor's contract: is an answer a valid `CompactorResult`? Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CompactorResult:
    """A compactor's replacement of the message list."""

    messages: tuple[JsonObject, ...]
    superseded: tuple[str, ...]
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class CompactorFault:
    """Why an answer cannot be used; `missing` are always-keep messages that it left out."""

    reason: str
    missing: tuple[str, ...] = ()


def parse_compactor_result(
    answer: JsonValue,
    *,
    compacted_ids: Collection[str],
    always_keep: Sequence[JsonObject],
) -> CompactorResult | CompactorFault:
    """Check a compactor's answer against everything the harness relies on (PH-ROLE-09 to 20).

    An always-keep message counts as kept when a message with its id, or an equal one, is in the
    answer.
    """
    if not isinstance(answer, dict):
        return CompactorFault("the answer is not an object")
    if answer.get("role") != "compactor":
        return CompactorFault('role is not "compactor"')
    raw, marks, summary = answer.get("messages"), answer.get("superseded"), answer.get("summary")
    if not isinstance(raw, list):
        return CompactorFault("messages is missing or not a list")
    messages = [message for message in raw if _is_message(message)]
    if len(messages) != len(raw):
        return CompactorFault("a message is not an object with role and content")
    if not isinstance(marks, list) or not all(isinstance(mark, str) for mark in marks):
        return CompactorFault("superseded is missing or not a list of ids")
    superseded = tuple(cast("list[str]", marks))
    foreign = sorted(set(superseded) - set(compacted_ids))
    if foreign:
        return CompactorFault(f"superseded names {foreign[0]}, which was not being compacted")
    if summary is not None and not isinstance(summary, str):
        return CompactorFault("summary is not text")
    kept = tuple(cast("list[JsonObject]", messages))
    missing = _missing(kept, always_keep)
    if missing:
        return CompactorFault("an always-keep message is missing", missing)
    return CompactorResult(kept, superseded, summary)


def _is_message(value: JsonValue) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _missing(kept: Sequence[JsonObject], always_keep: Sequence[JsonObject]) -> tuple[str, ...]:
    names = (message.get("id") for message in kept)
    ids = {name for name in names if isinstance(name, str)}
    lost: list[str] = []
    for message in always_keep:
        name = message.get("id")
        if (isinstance(name, str) and name in ids) or message in kept:
            continue
        lost.append(name if isinstance(name, str) else "?")
    return tuple(lost)
