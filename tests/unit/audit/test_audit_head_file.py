"""The head file: what it remembers of the chain, and what it notices at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.audit import (
    AuditUnavailable,
    ChainHead,
    ChainKey,
    FindingKind,
    HeadFile,
    verify_chain,
)
from kaged.base import JsonValue
from unit.audit.log_bench import KEY, Bench, enabled


async def test_the_head_file_is_written_at_once_for_a_new_chain_and_at_the_end(
    bench: Bench, tmp_path: Path
) -> None:
    file = HeadFile(tmp_path / "audit.head")
    log = await bench.open(head_file=file)
    first = file.read()
    assert first is not None
    assert first.seq == 0
    await log.record(enabled())
    await log.record(enabled())
    await log.close()
    last = file.read()
    assert last is not None
    assert last.seq == 2
    assert KEY.holds_anchor(last)
    assert verify_chain(bench.sink.rows, KEY, {"file": last}).ok


async def test_a_head_file_that_cannot_be_written_shows_and_stops_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    log = await bench.open(head_file=HeadFile(tmp_path / "gone" / "audit.head"))
    await log.record(enabled())
    await log.close()
    assert "gone" in str(log.health.head_file_error)
    assert bench.sink.names() == ["plugin.enabled"]


async def test_a_sound_chain_is_continued_without_a_word(bench: Bench, tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "audit.head")
    for _ in range(3):
        log = await bench.open(head_file=file)
        await log.record(enabled())
        await log.close()
        assert log.health.chain_mismatch is None
    assert bench.sink.names() == ["plugin.enabled"] * 3


async def prepared(bench: Bench, file: HeadFile) -> None:
    log = await bench.open(head_file=file)
    for number in range(5):
        await log.record(enabled(f"{number}"))
    await log.close()


async def reopened(bench: Bench, file: HeadFile, key: ChainKey = KEY) -> JsonValue:
    log = await bench.open(head_file=file, key=key)
    await log.record(enabled("after"))
    await log.close()
    noted = [row for row in bench.sink.rows if row.name == "audit.chain_mismatch"]
    assert len(noted) == 1
    report = verify_chain(bench.sink.rows, key, {"table": bench.sink.signed, "file": file.read()})
    assert FindingKind.RECORDED in {finding.kind for finding in report.findings}
    assert log.health.chain_mismatch is not None
    return noted[0].data["problems"]


async def test_rows_cut_off_while_the_daemon_was_away_are_noted_for_good(
    bench: Bench, tmp_path: Path
) -> None:
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    del bench.sink.rows[3:]
    assert await reopened(bench, file) == ["rows_missing", "rows_missing_since_head_file"]


async def test_rows_cut_off_together_with_an_old_anchor_are_noted(
    bench: Bench, tmp_path: Path
) -> None:
    """The forger kept an old copy of the database; the head file outside it tells."""
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    del bench.sink.rows[3:]
    last = bench.sink.rows[-1]
    bench.sink.signed = KEY.sign_anchor(ChainHead(last.seq, last.hash), 1)
    assert await reopened(bench, file) == ["rows_missing_since_head_file"]


async def test_an_emptied_database_is_noted(bench: Bench, tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    bench.sink.rows.clear()
    bench.sink.signed = None
    assert await reopened(bench, file) == ["rows_missing_since_head_file"]


async def test_a_removed_head_file_or_anchor_is_noted(bench: Bench, tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    file.path.unlink()
    bench.sink.signed = None
    assert await reopened(bench, file) == ["table_anchor_missing", "head_file_missing"]


async def test_a_forged_head_file_is_noted(bench: Bench, tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    file.path.write_text("{}", encoding="utf-8")
    assert await reopened(bench, file) == ["head_file_invalid"]


async def test_another_key_is_noted(bench: Bench, tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    assert await reopened(bench, file, ChainKey(b"n" * 32)) == ["other_key", "head_file_invalid"]


async def test_the_head_file_keeps_its_evidence_until_the_mismatch_is_durable(
    bench: Bench, tmp_path: Path
) -> None:
    file = HeadFile(tmp_path / "audit.head")
    await prepared(bench, file)
    evidence = file.read()
    del bench.sink.rows[3:]
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await bench.open(head_file=file)
    assert file.read() == evidence


async def test_the_head_file_follows_the_chain_at_most_once_a_second(
    bench: Bench, tmp_path: Path
) -> None:
    file = HeadFile(tmp_path / "audit.head")
    log = await bench.open(head_file=file)
    await log.record(enabled("one"))
    await log.record(enabled("two"))
    behind = file.read()
    assert behind is not None
    assert behind.seq == 0
    bench.clock.advance(1.1)
    await log.record(enabled("three"))
    await log.record(enabled("four"))  # its batch begins after the head was written
    found = file.read()
    assert found is not None
    assert found.seq in {2, 3}  # the idle thread may have been faster than the third event
