"""`[pipeline]`: policy plugins around every call, and what the host tells them of its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from kaged.config.containers import ListOf, MapOf
from kaged.config.hostvalues import HostPath
from kaged.config.people_section import HEADER
from kaged.config.records import empty_map, key, optional, record
from kaged.config.shapes import Choice, Flag, Number, TextShape

MAX_SECONDS: Final = 24 * 3600


class UntrustedContent(StrEnum):
    """What becomes of calls with effects that follow untrusted content."""

    OFF = "off"
    ASK = "ask"
    DENY = "deny"


class KeptTraces(StrEnum):
    """Of which steps of policies traces are kept."""

    ALL = "all"
    REFUSALS = "refusals"
    OFF = "off"


_WORD: Final = TextShape(max_chars=100, pattern=r"[A-Za-z0-9][A-Za-z0-9_.:-]*", means="a word")


@record
class PipelineSection:
    """Policy plugins around every call."""

    file: Path | None = optional(
        HostPath(), "The YAML file that lists them. Left out: none run.", default=None
    )
    lenient: bool = key(
        Flag(),
        "Skip faulty plugins instead of refusing calls until they are mended.",
        default=False,
    )
    timeout_seconds: float = key(
        Number(0.1, MAX_SECONDS), "How long one plugin may take for one call.", default=30
    )
    untrusted: UntrustedContent = key(
        Choice(UntrustedContent),
        "What becomes of calls with effects in sessions that have read untrusted content: "
        "`ask` lets a person decide, `deny` refuses them.",
        default=UntrustedContent.OFF,
    )
    ask_seconds: float = key(
        Number(1, MAX_SECONDS),
        "How long a call waits for a person where a policy wants one to agree.",
        default=300,
    )
    traces: KeptTraces = key(
        Choice(KeptTraces),
        "What `kaged pipeline trace` can show later: `all` steps of policies, only `refusals` "
        "(refused calls and changes, failures), or nothing (`off`).",
        default=KeptTraces.ALL,
    )
    environment: str | None = optional(
        _WORD, "Where this daemon works, such as `production`; policies see it.", default=None
    )
    classification: str | None = optional(
        _WORD, "How the data of calls is classified, such as `internal`.", default=None
    )
    classifications: Mapping[str, str] = key(
        MapOf(_WORD, TextShape(max_chars=200)),
        "The same for single projects, by id or name.",
        default_factory=empty_map,
    )
    headers: tuple[str, ...] = key(
        ListOf(HEADER, max_items=32, unique=True),
        "Headers of requests that policies may see, where the operator or a front end sent them.",
        default=(),
    )
    delegate_tokens: bool = key(
        Flag(),
        "Give the access token that a person came with to policies on `token_delegate`.",
        default=False,
    )
