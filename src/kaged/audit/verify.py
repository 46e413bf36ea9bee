"""`ChainVerifier`: reads a chain row by row and says what was changed, removed or added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from kaged.audit.chain import EMPTY, Anchor, ChainHead, ChainKey
from kaged.audit.row import AuditRow
from kaged.base.lazy_dataclass import dataclass

FINDINGS_LIMIT = 100
MISMATCH_EVENT = "audit.chain_mismatch"


class FindingKind(StrEnum):
    """What is wrong at one place of a chain."""

    EDITED = "edited"  # the row is not what was sealed, or was sealed with another key
    MISSING = "missing"  # rows are gone between two others
    ORDER = "out_of_order"  # the row repeats or comes before one it follows
    LINK = "broken_link"  # the row continues another row than the one before it
    TRUNCATED = "truncated"  # rows are gone from the end
    REPLACED = "replaced"  # an anchor names a row that is another one now
    ANCHOR_MISSING = "anchor_missing"
    ANCHOR_INVALID = "anchor_invalid"
    OTHER_KEY = "other_key"  # an anchor was signed with another key
    RECORDED = "recorded_mismatch"  # the daemon itself noted a break at a start
    MALFORMED = "malformed"  # not a row at all


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `seq` is the row it was seen at, 0 where there is none."""

    seq: int
    kind: FindingKind
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check of a whole chain found. `findings` holds the first hundred of `total`."""

    ok: bool
    rows: int
    first_seq: int
    head: ChainHead
    findings: tuple[Finding, ...]
    total: int
    anchors: tuple[str, ...]  # which anchors were there and agreed
    complete: bool = True  # false for a selection, where removed rows can only be counted


class ChainVerifier:
    """Checks rows as they are fed, in constant memory; `finish` compares with the anchors.

    Pure: reads no file and no database. Read the anchors before the first row, so that rows
    written meanwhile are never reported as missing.
    """

    def __init__(
        self,
        key: ChainKey,
        anchors: Mapping[str, Anchor | None] | None = None,
        *,
        accepted: frozenset[int] = frozenset(),
    ) -> None:
        self._key = key
        self._anchors = dict(anchors or {})
        self._accepted = accepted
        self._watched = {one.seq: "" for one in self._anchors.values() if one is not None}
        self._head = EMPTY
        self._rows = 0
        self._first_seq = 0
        self._findings: list[Finding] = []
        self._total = 0

    def feed(self, rows: Iterable[AuditRow]) -> None:
        """Check the next rows of the chain."""
        row_hash = self._key.row_hash
        seq, last_hash = self._head
        watched = self._watched
        for row in rows:
            self._rows += 1
            if row.seq == seq + 1:
                if row.prev_hash != last_hash:
                    self._found(row.seq, FindingKind.LINK, f"row {row.seq} does not follow {seq}")
            else:
                self._out_of_step(row.seq, seq)
            try:
                intact = row_hash(row) == row.hash
            except (TypeError, ValueError):
                self._found(row.seq, FindingKind.MALFORMED, f"row {row.seq} is not a sealed row")
            else:
                if not intact:
                    self._found(row.seq, FindingKind.EDITED, f"row {row.seq} was changed")
                elif row.name == MISMATCH_EVENT and row.seq not in self._accepted:
                    self._found(row.seq, FindingKind.RECORDED, _recorded(row))
            if row.seq in watched:
                watched[row.seq] = row.hash
            if row.seq > seq:
                seq, last_hash = row.seq, row.hash
            if not self._first_seq:
                self._first_seq = row.seq
        self._head = ChainHead(seq, last_hash)

    def malformed(self, detail: str) -> None:
        """Note something in the place of a row that is none."""
        self._found(self._head.seq, FindingKind.MALFORMED, detail)

    def note(self, seq: int, kind: FindingKind, detail: str) -> None:
        """Add a finding that the reader of the rows made itself."""
        self._found(seq, kind, detail)

    def finish(self) -> VerifyReport:
        """Compare the end of the chain with the anchors and return the report."""
        agreed = [label for label, anchor in self._anchors.items() if self._agrees(label, anchor)]
        return VerifyReport(
            ok=self._total == 0,
            rows=self._rows,
            first_seq=self._first_seq,
            head=self._head,
            findings=tuple(self._findings),
            total=self._total,
            anchors=tuple(agreed),
        )

    def _agrees(self, label: str, anchor: Anchor | None) -> bool:
        seq, _ = self._head
        if anchor is None:
            if seq:
                self._found(seq, FindingKind.ANCHOR_MISSING, f"there is no {label} anchor")
            return not seq
        if not self._key.holds_anchor(anchor):
            other = anchor.key_id and anchor.key_id != self._key.key_id
            kind = FindingKind.OTHER_KEY if other else FindingKind.ANCHOR_INVALID
            self._found(anchor.seq, kind, f"the {label} anchor was not signed with this key")
            return False
        if anchor.seq > seq:
            gone = anchor.seq - seq
            self._found(
                seq,
                FindingKind.TRUNCATED,
                f"{gone} newest rows are missing, compared with the {label} anchor",
            )
            return False
        if anchor.seq and self._watched[anchor.seq] != anchor.hash:
            self._found(
                anchor.seq, FindingKind.REPLACED, f"row {anchor.seq} is not the {label} anchor's"
            )
            return False
        return True

    def _out_of_step(self, found: int, last: int) -> None:
        if found > last:
            gone = f"row {last + 1}" if found - last == 2 else f"rows {last + 1} to {found - 1}"
            self._found(found, FindingKind.MISSING, f"missing: {gone}")
        else:
            self._found(found, FindingKind.ORDER, f"row {found} stands behind row {last}")

    def _found(self, seq: int, kind: FindingKind, detail: str) -> None:
        self._total += 1
        if len(self._findings) < FINDINGS_LIMIT:
            self._findings.append(Finding(seq, kind, detail))


def verify_chain(
    rows: Iterable[AuditRow],
    key: ChainKey,
    anchors: Mapping[str, Anchor | None] | None = None,
) -> VerifyReport:
    """Check a whole chain from its first row to its last, and its anchors when given."""
    verifier = ChainVerifier(key, anchors)
    verifier.feed(rows)
    return verifier.finish()


def _recorded(row: AuditRow) -> str:
    return f"row {row.seq}: the daemon started on a chain that did not end where it should"
