"""`Approvals`: which tools of outside servers the operator has agreed to, kept in a file.

A server's tools are agreed to as they are when the server is first used: the operator has just
named it. From then on a tool that is new or reads differently is held back until the operator
agrees again, so that a server cannot turn into another one behind an agent's back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from kaged.base.lazy_dataclass import dataclass
from kaged.mcp.catalog import OutsideTool

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ApprovalVerdict:
    """How a listing compares with what was agreed to; `first` when nothing was yet."""

    first: bool
    agreed: frozenset[str]
    changed: Mapping[str, str]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether everything is as it was."""
        return not (self.first or self.changed or self.added or self.removed)


class Approvals:
    """Digests of agreed tools, by server and the server's own name for the tool."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._agreed: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file; nothing is agreed to when there is none. Raises OSError, ValueError."""
        try:
            raw = self._path.read_bytes()[: MAX_FILE_BYTES + 1]
        except FileNotFoundError:
            return
        found: Any = json.loads(raw)
        kept = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        servers: Any = kept.get("servers")
        known = cast("dict[str, Any]", servers) if isinstance(servers, dict) else None
        sound = known is not None and all(isinstance(tools, dict) for tools in known.values())
        if kept.get("format") != FORMAT or known is None or not sound:
            raise ValueError(f"{self._path} holds no approvals")
        self._agreed = {
            server: {tool: str(digest) for tool, digest in tools.items()}
            for server, tools in known.items()
        }

    def compare(self, server: str, tools: Sequence[OutsideTool]) -> ApprovalVerdict:
        """Return what is new about a server's tools."""
        known = self._agreed.get(server)
        if known is None:
            every = frozenset(one.original for one in tools)
            return ApprovalVerdict(first=True, agreed=every, changed={}, added=(), removed=())
        now = {one.original: one.digest for one in tools}
        changed = {name: known[name] for name in now if name in known and known[name] != now[name]}
        return ApprovalVerdict(
            first=False,
            agreed=frozenset(name for name, digest in now.items() if known.get(name) == digest),
            changed=changed,
            added=tuple(sorted(set(now) - set(known))),
            removed=tuple(sorted(set(known) - set(now))),
        )

    def agree(self, server: str, tools: Sequence[OutsideTool]) -> None:
        """Approve the tools as they are. Blocks on the disk. Raises OSError."""
        self._agreed = {**self._agreed, server: {one.original: one.digest for one in tools}}
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"format": FORMAT, "servers": self._agreed}, indent=1, sort_keys=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(0o600)
        beside.replace(self._path)
