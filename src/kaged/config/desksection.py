"""`ToolsSection`: what the operator says about tools, whichever project uses them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kaged.config.containers import ListOf
from kaged.config.problems import Severity
from kaged.config.records import RecordShape, key, record
from kaged.config.shapes import Choice, Text, Whole
from kaged.config.toolrules import NAME_PATTERN

MAX_QUOTAS: Final = 200
MAX_CALLS: Final = 1_000_000


class OutsideHitsWord(StrEnum):
    """What a caged agent's searches tell about files outside its cage."""

    MARK = "mark"
    OMIT = "omit"


class QuotaSpan(StrEnum):
    """Over what calls are counted: a run, a session, or an agent's last minute."""

    RUN = "run"
    SESSION = "session"
    MINUTE = "minute"


@record
class QuotaEntry:
    """A limit on how often an agent may call some tools."""

    tools: str = key(
        Text(max_chars=200, pattern=NAME_PATTERN, means="a tool name or glob"),
        "The tools it counts, as a name or glob such as `shell.*`.",
    )
    calls: int = key(Whole(1, MAX_CALLS), "How many calls are allowed.")
    per: QuotaSpan = key(Choice(QuotaSpan), "In what: a run, a session, or a minute.")


@record
class ToolsSection:
    """The tools of all agents. Taken up when the daemon starts."""

    quotas: tuple[QuotaEntry, ...] = key(
        ListOf(RecordShape(QuotaEntry, unknown=Severity.ERROR), max_items=MAX_QUOTAS),
        "Limits on how often each agent may call tools; without any, nothing is counted.",
        default=(),
    )
    outside_hits: OutsideHitsWord = key(
        Choice(OutsideHitsWord),
        "What searches tell a caged agent about files outside its cage: `mark` shows path and "
        "line, `omit` nothing.",
        default=OutsideHitsWord.MARK,
    )


__all__ = ["OutsideHitsWord", "QuotaEntry", "QuotaSpan", "ToolsSection"]
