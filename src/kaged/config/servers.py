"""Language servers and debug adapters: how project and operator files describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kaged.config.containers import ListOf
from kaged.config.nodes import Node
from kaged.config.problems import Severity
from kaged.config.reading import DocumentPosition
from kaged.config.records import RecordShape, key, optional, record, strict
from kaged.config.shapes import Flag, TextShape, Whole

ARGV: Final = ListOf(TextShape(max_chars=4096, one_line=False), min_items=1, max_items=200)
"""A command as a list of words; it is never given to a shell."""

_NAME: Final = TextShape(max_chars=64, pattern=r"[a-z][a-z0-9_+-]*", means="a lower-case name")


_PARALLEL: Final = Whole(1, 16)
_PARALLEL_SAYS: Final = "How many reading questions it may be asked at once; edits come alone."


@record
class LspServerEntry:
    """A language server of the project."""

    lang: str = key(_NAME, "The language it serves.")
    command: tuple[str, ...] = key(ARGV, "The command that starts it, as a list.")
    parallel_requests: int = key(_PARALLEL, _PARALLEL_SAYS, default=1)


@record
class OperatorLspServer:
    """A language server as the operator configures it."""

    command: tuple[str, ...] = key(ARGV, "The command that starts it, as a list.")
    parallel_requests: int = key(_PARALLEL, _PARALLEL_SAYS, default=1)


@record
class DapAdapter:
    """A debug adapter of the project."""

    runtime: str = key(_NAME, "The runtime it debugs.")
    type: str = key(TextShape(max_chars=64), "The adapter's type, as its launch request names it.")
    command: tuple[str, ...] | None = optional(
        ARGV, "The command that runs the program.", default=None
    )
    adapter: tuple[str, ...] | None = optional(
        ARGV, "The command that starts the adapter.", default=None
    )
    requires_ptrace: bool | None = optional(
        Flag(), "Whether it needs ptrace, which only relaxed cages have.", default=None
    )


@record
class OperatorDapAdapter:
    """A debug adapter as the operator configures it."""

    type: str = key(TextShape(max_chars=64), "The adapter's type, as its launch request names it.")
    command: tuple[str, ...] | None = optional(
        ARGV, "The command that runs the program.", default=None
    )
    adapter: tuple[str, ...] | None = optional(
        ARGV, "The command that starts the adapter.", default=None
    )
    requires_ptrace: bool | None = optional(
        Flag(), "Whether it needs ptrace, which only relaxed cages have.", default=None
    )


def check_adapter(_: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    """Refuse an adapter that says neither how to run the program nor how to start the adapter."""
    if node.entry("command") is None and node.entry("adapter") is None:
        place.error(node, "command or adapter is missing", "give at least one", "missing_key")


@record
class LspBlock:
    """Language servers of the project."""

    servers: tuple[LspServerEntry, ...] = key(
        ListOf(strict(LspServerEntry)),
        "One entry per language. Used only after the operator has agreed to the project's ask.",
        default=(),
    )


@record
class DapBlock:
    """Debug adapters of the project."""

    adapters: tuple[DapAdapter, ...] = key(
        ListOf(strict(DapAdapter, check=check_adapter)),
        "One entry per runtime. Used only after the operator has agreed to the project's ask.",
        default=(),
    )


def check_unique(block: Node, listed: str, name: str, place: DocumentPosition) -> None:
    """Refuse a list of servers or adapters that serves one language or runtime twice."""
    items = block.child(listed)
    seen: dict[str, int] = {}
    values = items.value if items is not None and isinstance(items.value, tuple) else ()
    for index, item in enumerate(values):
        found = item.child(name)
        if found is None or not isinstance(found.value, str):
            continue
        if found.value in seen:
            place.at(listed, index, name).error(
                found,
                f"{place.show(found.value)} is listed twice (first as entry "
                f"{seen[found.value] + 1})",
                "keep one of the two",
                "duplicate_key",
            )
        seen.setdefault(found.value, index)


LSP_SHAPE: Final = RecordShape(
    LspBlock,
    unknown=Severity.ERROR,
    check=lambda _, node, place: check_unique(node, "servers", "lang", place),
)
DAP_SHAPE: Final = RecordShape(
    DapBlock,
    unknown=Severity.ERROR,
    check=lambda _, node, place: check_unique(node, "adapters", "runtime", place),
)
