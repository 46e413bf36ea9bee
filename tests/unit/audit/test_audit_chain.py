"""Whatever is done to a sealed chain without its key, the check finds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.audit import (
    Anchor,
    AuditRow,
    ChainHead,
    ChainKey,
    FindingKind,
    VerifyReport,
    verify_chain,
)
from kaged.audit.chain import EMPTY, GENESIS
from kaged.audit.verify import FINDINGS_LIMIT, ChainVerifier

UNHURRIED = settings(deadline=None)  # a busy machine is no failure

KEY = ChainKey(b"k" * 32)
OTHER = ChainKey(b"o" * 32)


def sealed(count: int, key: ChainKey = KEY, after: ChainHead = EMPTY) -> list[AuditRow]:
    rows: list[AuditRow] = []
    seq, last = after
    for number in range(count):
        seq += 1
        row = AuditRow(
            seq,
            f"01{seq:024d}",
            1_767_225_600_000 - number * 7,  # a clock that runs backwards
            "plugin.killed" if number % 2 else "file.edited",
            f"prj_{number}" if number % 3 else None,
            f"req_{number}" if number % 5 else None,
            f'{{"name":"p{number}"}}',
            last,
            "",
        )
        last = key.row_hash(row)
        rows.append(row._replace(hash=last))
    return rows


def anchored(rows: list[AuditRow], key: ChainKey = KEY) -> Anchor:
    head = ChainHead(rows[-1].seq, rows[-1].hash) if rows else EMPTY
    return key.sign_anchor(head, 5)


def check(rows: list[AuditRow], anchor: Anchor | None) -> VerifyReport:
    return verify_chain(rows, KEY, {"table": anchor})


def kinds(report: VerifyReport) -> set[FindingKind]:
    return {finding.kind for finding in report.findings}


def test_an_untouched_chain_is_sound_although_its_clock_ran_backwards() -> None:
    rows = sealed(50)
    report = check(rows, anchored(rows))
    assert report.ok
    assert (report.rows, report.first_seq, report.head.seq) == (50, 1, 50)
    assert report.anchors == ("table",)


def test_an_empty_chain_is_sound() -> None:
    assert check([], None).ok
    assert check([], KEY.sign_anchor(EMPTY, 0)).ok


def test_the_hash_covers_every_part_of_a_row() -> None:
    row = sealed(3)[2]
    assert row.project_id == "prj_2"
    assert row.request_id == "req_2"
    variants = [
        row._replace(seq=4),
        # Of the same length, so that nothing but the text tells.
        row._replace(id=row.id[::-1]),
        row._replace(name=row.name[::-1]),
        row._replace(project_id="prj_9"),
        row._replace(request_id="req_9"),
        row._replace(data_json=row.data_json[::-1]),
        row._replace(prev_hash=row.prev_hash[::-1]),
        row._replace(id="x"),
        row._replace(ts_ms=0),
        row._replace(name="x"),
        row._replace(project_id="x"),
        row._replace(project_id=""),
        row._replace(request_id=None),
        row._replace(data_json="{}"),
        row._replace(prev_hash=GENESIS),
    ]
    assert len({KEY.row_hash(one) for one in [row, *variants]}) == len(variants) + 1


def test_text_moved_from_one_part_to_the_next_changes_the_hash() -> None:
    row = sealed(1)[0]._replace(name="ab", project_id="cd", request_id="ef")
    moved = row._replace(name="abc", project_id="d")
    gone = row._replace(project_id="", request_id="cdef")
    absent = row._replace(project_id=None, request_id="cdef")
    assert len({KEY.row_hash(one) for one in (row, moved, gone, absent)}) == 4


edits: st.SearchStrategy[Callable[[AuditRow], AuditRow]] = st.sampled_from(
    [
        lambda row: row._replace(data_json=row.data_json.replace("p", "q")),
        lambda row: row._replace(ts_ms=row.ts_ms + 1),
        lambda row: row._replace(name="tool.denied"),
        lambda row: row._replace(project_id="prj_forged"),
        lambda row: row._replace(request_id="req_forged"),
        lambda row: row._replace(id="forged"),
        lambda row: row._replace(hash=OTHER.row_hash(row)),
        lambda row: row._replace(prev_hash="f" * 64),
    ]
)


@UNHURRIED
@given(st.integers(1, 30), st.data(), edits)
def test_any_edit_is_found_at_its_row(
    count: int, data: st.DataObject, edit: Callable[[AuditRow], AuditRow]
) -> None:
    rows = sealed(count)
    place = data.draw(st.integers(0, count - 1))
    anchor = anchored(rows)
    rows[place] = edit(rows[place])
    report = check(rows, anchor)
    assert not report.ok
    assert place + 1 in {finding.seq for finding in report.findings}


@UNHURRIED
@given(st.integers(1, 30), st.data(), edits)
def test_an_edit_that_recomputes_all_later_hashes_without_the_key_is_found(
    count: int, data: st.DataObject, edit: Callable[[AuditRow], AuditRow]
) -> None:
    rows = sealed(count)
    place = data.draw(st.integers(0, count - 1))
    anchor = anchored(rows)
    last = rows[place - 1].hash if place else GENESIS
    for index in range(place, count):
        row = rows[index]._replace(prev_hash=last)
        if index == place:
            row = edit(row)._replace(prev_hash=last)
        last = OTHER.row_hash(row)
        rows[index] = row._replace(hash=last)
    assert not check(rows, anchor).ok


@UNHURRIED
@given(st.integers(1, 30), st.data())
def test_any_removal_is_found_also_of_the_newest_rows(count: int, data: st.DataObject) -> None:
    rows = sealed(count)
    anchor = anchored(rows)
    gone = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    left = [row for index, row in enumerate(rows) if index not in gone]
    report = check(left, anchor)
    assert kinds(report) & {FindingKind.MISSING, FindingKind.TRUNCATED}


@UNHURRIED
@given(st.integers(2, 30), st.data())
def test_any_swap_is_found(count: int, data: st.DataObject) -> None:
    rows = sealed(count)
    anchor = anchored(rows)
    one, two = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    # Two ways to do it: exchange the rows' places, or exchange what stands in them.
    in_place = list(rows)
    in_place[one], in_place[two] = rows[two], rows[one]
    relabelled = list(rows)
    relabelled[one] = rows[two]._replace(seq=rows[one].seq)
    relabelled[two] = rows[one]._replace(seq=rows[two].seq)
    assert not check(in_place, anchor).ok
    assert not check(relabelled, anchor).ok


@UNHURRIED
@given(st.integers(1, 20), st.data())
def test_any_inserted_row_is_found(count: int, data: st.DataObject) -> None:
    rows = sealed(count)
    anchor = anchored(rows)
    place = data.draw(st.integers(0, count))
    source = data.draw(st.integers(0, count - 1))
    copied = [*rows[:place], rows[source], *rows[place:]]
    forged = rows[source]._replace(seq=count + 1, prev_hash=rows[-1].hash)
    forged = forged._replace(hash=OTHER.row_hash(forged))
    assert not check(copied, anchor).ok
    assert not check([*rows, forged], anchor).ok


@UNHURRIED
@given(st.integers(1, 20), st.integers(1, 20))
def test_a_whole_chain_made_with_another_key_is_found(count: int, wanted: int) -> None:
    rows = sealed(count, OTHER)
    for anchor in (anchored(sealed(wanted)), anchored(rows, OTHER), None):
        report = check(rows, anchor)
        assert not report.ok
        assert FindingKind.EDITED in kinds(report)


@UNHURRIED
@given(st.integers(2, 30), st.data())
def test_an_older_anchor_of_the_same_chain_agrees(count: int, data: st.DataObject) -> None:
    """The file is a second behind; that is no finding."""
    rows = sealed(count)
    old = data.draw(st.integers(1, count - 1))
    report = verify_chain(rows, KEY, {"table": anchored(rows), "file": anchored(rows[:old])})
    assert report.ok
    assert report.anchors == ("table", "file")


def test_an_anchor_that_names_another_row_is_found() -> None:
    rows = sealed(5)
    report = check(rows, KEY.sign_anchor(ChainHead(3, "f" * 64), 1))
    assert kinds(report) == {FindingKind.REPLACED}


@UNHURRIED
@given(st.sampled_from(["seq", "hash", "ts_ms", "mac"]))
def test_an_anchor_that_was_changed_is_found(part: str) -> None:
    rows = sealed(5)
    forged = anchored(rows)._replace(**{part: 4 if part in {"seq", "ts_ms"} else "ü"})
    assert kinds(check(rows, forged)) == {FindingKind.ANCHOR_INVALID}


def test_a_missing_anchor_is_found() -> None:
    assert kinds(check(sealed(5), None)) == {FindingKind.ANCHOR_MISSING}


def test_a_wrong_key_is_told_from_tampering() -> None:
    rows = sealed(5)
    report = verify_chain(rows, OTHER, {"table": anchored(rows)})
    assert FindingKind.OTHER_KEY in kinds(report)


def test_one_edit_is_one_finding_and_not_an_avalanche() -> None:
    rows = sealed(100)
    anchor = anchored(rows)
    rows[40] = rows[40]._replace(data_json="{}")
    assert check(rows, anchor).total == 1


def test_findings_are_bounded_and_counted() -> None:
    rows = [row._replace(data_json="{}") for row in sealed(FINDINGS_LIMIT + 50)]
    report = verify_chain(rows, KEY)
    assert len(report.findings) == FINDINGS_LIMIT
    assert report.total == FINDINGS_LIMIT + 50


def test_a_row_that_is_no_row_is_a_finding() -> None:
    rows = sealed(2)
    rows[1] = rows[1]._replace(data_json=None)  # hostile on purpose
    assert kinds(verify_chain(rows, KEY)) == {FindingKind.MALFORMED}


def test_a_break_that_the_daemon_noted_itself_stays_a_finding_until_it_is_accepted() -> None:
    rows = sealed(3)
    note = AuditRow(4, "01", 1, "audit.chain_mismatch", None, None, "{}", rows[-1].hash, "")
    rows.append(note._replace(hash=KEY.row_hash(note)))
    report = check(rows, anchored(rows))
    assert kinds(report) == {FindingKind.RECORDED}
    verifier = ChainVerifier(KEY, {"table": anchored(rows)}, accepted=frozenset({4}))
    verifier.feed(rows)
    assert verifier.finish().ok


def test_feeding_in_pieces_is_feeding_at_once() -> None:
    rows = sealed(20)
    verifier = ChainVerifier(KEY, {"table": anchored(rows)})
    for start in range(0, 20, 3):
        verifier.feed(rows[start : start + 3])
    assert verifier.finish() == check(rows, anchored(rows))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ChainKey(b"short")


def test_signatures_of_one_kind_are_not_valid_as_another() -> None:
    anchor = KEY.sign_anchor(ChainHead(1, GENESIS), 5)
    assert KEY.sign_export(f"1 1 {GENESIS} 5") != anchor.mac


@UNHURRIED
@given(st.integers(0, 10))
def test_the_repr_of_a_key_does_not_show_it(number: int) -> None:
    secret = bytes([number + 65]) * 32
    assert secret.decode() not in repr(ChainKey(secret))
    assert secret.hex() not in repr(ChainKey(secret))
