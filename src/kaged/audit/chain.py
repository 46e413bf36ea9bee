"""The hash chain: `ChainKey` seals rows and signs `Anchor`s, `ChainHead` says where it ends.

The hash of a row is HMAC-SHA256 over one text: a line with the format number, the previous row's
hash, the sequence number, the time and the lengths in characters of the five texts that follow it
(`-` for one that is null), and then those texts without anything between them.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from kaged.audit.row import AuditRow

GENESIS = "0" * 64
KEY_BYTES = 32


class ChainHead(NamedTuple):
    """The last row of a chain; `seq` 0 and the genesis hash for an empty one."""

    seq: int
    hash: str


EMPTY = ChainHead(0, GENESIS)


class Anchor(NamedTuple):
    """A signed statement that the chain had this head at this time.

    Rows can be cut off the end of a chain without a trace in the rest of it; an anchor that names
    a row which is gone is that trace.
    """

    seq: int
    hash: str
    ts_ms: int
    key_id: str
    mac: str


class ChainKey:
    """The secret that seals rows and signs anchors. It lives in a file outside the database.

    Keys for rows, anchors and exports are derived from it, so that a signature of one kind is
    never valid as another. `key_id` tells keys apart and reveals nothing. `fingerprints` is a key
    for what events say of values that they must not show; it is the same after a restart.
    """

    __slots__ = ("_anchor", "_export", "_row", "fingerprints", "key_id")

    def __init__(self, secret: bytes) -> None:
        if len(secret) < KEY_BYTES:
            raise ValueError(f"an audit key has at least {KEY_BYTES} bytes")
        self._row = _derived(secret, b"kaged audit row 1")
        self._anchor = _derived(secret, b"kaged audit anchor 1")
        self._export = _derived(secret, b"kaged audit export 1")
        self.fingerprints = hmac.digest(secret, b"kaged audit fingerprints 1", "sha256")
        self.key_id = _derived(secret, b"kaged audit key id 1").hexdigest()[:16]

    def __repr__(self) -> str:
        """Show the id and nothing of the key."""
        return f"ChainKey({self.key_id})"

    def row_hash(self, row: AuditRow) -> str:
        """Compute what `row.hash` must be, given the `prev_hash` that the row names."""
        return self.hash(*row[:-1])

    def hash(
        self,
        seq: int,
        id_: str,
        ts_ms: int,
        name: str,
        project_id: str | None,
        request_id: str | None,
        data_json: str,
        prev_hash: str,
    ) -> str:
        """Compute the hash of a row from its parts, in their order."""
        text = (
            f"1 {prev_hash} {seq} {ts_ms} {len(id_)} {len(name)} "
            f"{'-' if project_id is None else len(project_id)} "
            f"{'-' if request_id is None else len(request_id)} {len(data_json)}\n"
            f"{id_}{name}{project_id or ''}{request_id or ''}{data_json}"
        )
        mac = self._row.copy()
        mac.update(text.encode("utf-8", "surrogatepass"))
        return mac.hexdigest()

    def sign_anchor(self, head: ChainHead, ts_ms: int) -> Anchor:
        """Sign that the chain ends here at this time."""
        return Anchor(head.seq, head.hash, ts_ms, self.key_id, self._anchor_mac(head, ts_ms))

    def holds_anchor(self, anchor: Anchor) -> bool:
        """Return whether this key signed the anchor."""
        wanted = self._anchor_mac(ChainHead(anchor.seq, anchor.hash), anchor.ts_ms)
        return hmac.compare_digest(wanted.encode(), anchor.mac.encode("utf-8", "surrogatepass"))

    def sign_export(self, summary: str) -> str:
        """Sign the summary at the end of an export."""
        mac = self._export.copy()
        mac.update(summary.encode())
        return mac.hexdigest()

    def _anchor_mac(self, head: ChainHead, ts_ms: int) -> str:
        mac = self._anchor.copy()
        mac.update(f"1 {head.seq} {head.hash} {ts_ms}".encode("utf-8", "surrogatepass"))
        return mac.hexdigest()


def _derived(secret: bytes, purpose: bytes) -> hmac.HMAC:
    return hmac.new(hmac.digest(secret, purpose, "sha256"), digestmod=hashlib.sha256)
