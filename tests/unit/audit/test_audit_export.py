"""An export can be checked wherever it lies, and shows every change made to it."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.audit import AuditFilter, AuditRow, ChainKey, ExportWriter, FindingKind, verify_export
from kaged.audit.chain import GENESIS
from kaged.audit.export import LINE_LIMIT_BYTES, read_lines

UNHURRIED = settings(deadline=None)  # a busy machine is no failure

KEY = ChainKey(b"k" * 32)
OTHER = ChainKey(b"o" * 32)
SELECTION = AuditFilter(names=("plugin.*",))


def chain(count: int) -> list[AuditRow]:
    rows: list[AuditRow] = []
    last = GENESIS
    for seq in range(1, count + 1):
        row = AuditRow(
            seq,
            f"01{seq:024d}",
            1_767_225_600_123 + seq,
            "plugin.killed",
            None,
            "req_ü",
            msgspec.json.encode({"a": 1e22, "name": f"ü{seq}"}).decode(),
            last,
            "",
        )
        last = KEY.row_hash(row)
        rows.append(row._replace(hash=last))
    return rows


def exported(rows: list[AuditRow], wanted: AuditFilter | None = None) -> list[bytes]:
    writer = ExportWriter(KEY, wanted)
    return [writer.header(), *writer.lines(rows).splitlines(keepends=True), writer.end()]


def test_an_untouched_export_is_sound() -> None:
    report = verify_export(exported(chain(20)), KEY)
    assert report.ok
    assert report.complete
    assert (report.rows, report.head.seq) == (20, 20)


def test_an_export_of_nothing_is_sound() -> None:
    assert verify_export(exported([]), KEY).ok


def test_a_selection_is_sound_although_it_has_gaps() -> None:
    report = verify_export(exported(chain(20)[3:15:2], SELECTION), KEY)
    assert report.ok
    assert not report.complete
    assert report.rows == 6


def test_every_line_is_json_that_people_can_read() -> None:
    first = json.loads(exported(chain(1))[1])
    assert first["timestamp"] == "2026-01-01T00:00:00.124Z"
    assert first["event"] == "plugin.killed"
    assert first["data"]["name"] == "ü1"


@UNHURRIED
@given(st.booleans(), st.data())
def test_any_removed_repeated_or_moved_line_is_found(whole: bool, data: st.DataObject) -> None:
    lines = exported(chain(8), None if whole else SELECTION)
    place = data.draw(st.integers(0, len(lines) - 1))
    removed = lines[:place] + lines[place + 1 :]
    repeated = [*lines[:place], lines[place], *lines[place:]]
    other = data.draw(st.integers(0, len(lines) - 1).filter(lambda index: index != place))
    moved = list(lines)
    moved[place], moved[other] = lines[other], lines[place]
    for changed in (removed, repeated, moved):
        assert not verify_export(changed, KEY).ok


@UNHURRIED
@given(st.booleans(), st.data())
def test_any_changed_value_is_found(whole: bool, data: st.DataObject) -> None:
    lines = exported(chain(5), None if whole else SELECTION)
    place = data.draw(st.integers(1, 5))
    line = json.loads(lines[place])
    part = data.draw(st.sampled_from(sorted(line)))
    if part == "data":
        line["data"]["name"] = "forged"
    elif isinstance(line[part], int):
        line[part] += 1
    elif part == "timestamp":
        line[part] = "2026-01-01T00:00:00.999Z"
    else:
        line[part] = "forged"
    lines[place] = json.dumps(line).encode()
    assert not verify_export(lines, KEY).ok


def test_calling_a_whole_export_a_selection_does_not_hide_a_removed_row() -> None:
    lines = exported(chain(5))
    head = json.loads(lines[0]) | {"complete": False}
    end = json.loads(lines[-1])
    end["end"] |= {"complete": False, "rows": 4}
    forged = [json.dumps(head).encode(), *lines[1:3], *lines[4:6], json.dumps(end).encode()]
    assert not verify_export(forged, KEY).ok


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"\n"],
        [b"garbage\n"],
        [b"{}\n"],
        [b'{"kaged_audit_export":1,"key_id":"x","complete":true}\n'],
        [b"\xff\xfe\n", b"[" * 10_000],
    ],
)
def test_what_is_no_export_is_a_finding_and_no_crash(lines: list[bytes]) -> None:
    assert not verify_export(lines, KEY).ok


def test_lines_formatted_anew_still_verify() -> None:
    lines = exported(chain(4))
    pretty = [json.dumps(json.loads(line), ensure_ascii=False).encode() for line in lines]
    assert verify_export(pretty, KEY).ok


def test_another_key_is_named_as_the_cause() -> None:
    report = verify_export(exported(chain(2)), OTHER)
    assert FindingKind.OTHER_KEY in {finding.kind for finding in report.findings}


def test_a_row_that_someone_made_unreadable_is_exported_and_found() -> None:
    rows = chain(2)
    rows[1] = rows[1]._replace(data_json="{not json")
    assert not verify_export(exported(rows), KEY).ok


def test_a_line_without_end_is_read_in_pieces() -> None:
    pieces = list(read_lines(io.BytesIO(b"x" * (3 * LINE_LIMIT_BYTES))))
    assert max(len(piece) for piece in pieces) == LINE_LIMIT_BYTES + 1
    assert not verify_export(pieces, KEY).ok
