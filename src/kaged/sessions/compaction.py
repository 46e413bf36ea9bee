"""`plan_compaction`: which messages of a full window may go, and which stay whatever happens. Pure.

Always kept: system messages, the first message of the user, pinned ones, the last few, and every
turn whose tool calls are still open. A turn and the results it asked for go together or not at
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import ResolvedCompaction
from kaged.sessions.entry import EntryRole
from kaged.sessions.messages import WindowMessage, message_of, open_calls, text_block

KEEP_LAST: Final = 6
"""How many of the newest messages are always kept."""

DEFAULT_SHARE: Final = 0.8
"""Which share of the model's window may be full before it is compacted."""

TARGET_SHARE: Final = 0.5
"""Down to which share of the threshold a compaction goes."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a compaction would do: `being` may go, `remaining` stays, `keep` must stay."""

    being: tuple[WindowMessage, ...]
    remaining: tuple[WindowMessage, ...]
    keep: tuple[WindowMessage, ...]

    @property
    def tokens_after(self) -> int:
        """The estimate of what remains."""
        return sum(one.tokens for one in self.remaining)


def threshold_tokens(compaction: ResolvedCompaction, context_tokens: int) -> int:
    """Return the number of tokens at which a window is full.

    A threshold up to 1 is a share of the model's window, above 1 a number of tokens, but never
    more than the model takes.
    """
    given = compaction.threshold
    if given is None:
        return max(1, int(context_tokens * DEFAULT_SHARE))
    wanted = context_tokens * given if given <= 1 else given
    return max(1, min(int(wanted), context_tokens))


def always_keep(messages: Sequence[WindowMessage], keep_last: int = KEEP_LAST) -> frozenset[str]:
    """Return the ids of the messages that no strategy and no compactor may take out."""
    waiting = {call.request_id for call in open_calls(messages)}
    kept: set[str] = set()
    first_user = next((one.id for one in messages if one.role is EntryRole.USER), None)
    if first_user is not None:
        kept.add(first_user)
    for message in messages:
        is_open = any(call.request_id in waiting for call in message.calls)
        # Notes of earlier compactions may be summed up again, or they would pile up.
        is_system = message.role is EntryRole.SYSTEM and message.stored
        if is_system or message.pinned or is_open:
            kept.add(message.id)
    if keep_last:
        kept.update(one.id for one in messages[-keep_last:])
    for group in _groups(messages):
        ids = {one.id for one in group}
        if ids & kept:
            kept |= ids
    return frozenset(kept)


def plan_compaction(
    messages: Sequence[WindowMessage], target_tokens: int, keep_last: int = KEEP_LAST
) -> CompactionPlan:
    """Choose, oldest first, what goes until the rest fits into `target_tokens`."""
    kept = always_keep(messages, keep_last)
    left = sum(one.tokens for one in messages)
    going: set[str] = set()
    for group in _groups(messages):
        if left <= target_tokens:
            break
        if any(one.id in kept for one in group):
            continue
        going.update(one.id for one in group)
        left -= sum(one.tokens for one in group)
    return CompactionPlan(
        being=tuple(one for one in messages if one.id in going),
        remaining=tuple(one for one in messages if one.id not in going),
        keep=tuple(one for one in messages if one.id in kept),
    )


def with_note(
    messages: Sequence[WindowMessage], after: Sequence[WindowMessage], note_id: str, note: str
) -> list[WindowMessage]:
    """Put a note of the host where the messages stood that went; `after` are those that stay."""
    if not note:
        return [*after]
    gone = {one.id for one in messages} - {one.id for one in after}
    place = next((at for at, one in enumerate(messages) if one.id in gone), len(messages))
    before = {one.id for one in messages[:place]}
    where = sum(1 for one in after if one.id in before)
    made = message_of(note_id, EntryRole.SYSTEM, [text_block(note)])
    return [*after[:where], made, *after[where:]]


def _groups(messages: Sequence[WindowMessage]) -> list[list[WindowMessage]]:
    """Put each turn together with the results it asked for."""
    groups: list[list[WindowMessage]] = []
    by_call: dict[str, list[WindowMessage]] = {}
    for message in messages:
        home = next((by_call[name] for name in message.answers if name in by_call), None)
        if home is not None:
            home.append(message)
            continue
        group = [message]
        groups.append(group)
        for call in message.calls:
            by_call[call.request_id] = group
            by_call[call.call_id] = group
    return groups
