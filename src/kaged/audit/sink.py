"""`AuditSink`: what the log needs from whatever keeps its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kaged.audit.chain import Anchor, ChainHead
from kaged.audit.row import AuditRow


class AuditSink(Protocol):
    """Keeps rows for good.

    All methods are called from one thread that is not the event loop's, and may block. Any
    exception means "not kept"; the log then refuses what it gates and tries again later.
    """

    def append(self, rows: Sequence[AuditRow], anchor: Anchor) -> None:
        """Keep the rows and the anchor, all or none; they are on disk when this returns.

        Raises:
            ChainMoved: the first row does not continue the stored chain.
        """
        ...

    def head(self) -> ChainHead:
        """Return the last row that is kept."""
        ...

    def anchor(self) -> Anchor | None:
        """Return the anchor that is kept beside the rows."""
        ...

    def hash_at(self, seq: int) -> str | None:
        """Return the stored hash of one row, None if there is no such row."""
        ...
