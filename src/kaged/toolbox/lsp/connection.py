"""`LspConnection`: a conversation in which a question that was given up is cancelled."""

from __future__ import annotations

import contextlib

from kaged.peer import Connection, PeerGone, PeerStalled


class LspConnection(Connection):
    """A connection to a language server."""

    def _say_cancel(self, call_id: int) -> None:
        with contextlib.suppress(PeerGone, PeerStalled):
            self.notify("$/cancelRequest", {"id": call_id})
