"""A file's stamp is relied on only if a later change must show in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.file_clock import TICK_NS, FileClock
from kaged.base.file_stamp import COARSE_SETTLED_NS, SETTLED_NS, is_settled, stamp_of


def test_the_stamp_of_a_file_that_has_just_changed_is_not_relied_on(
    tmp_path: Path, file_clock: FileClock
) -> None:
    file = tmp_path / "file"
    file.write_text("one", encoding="utf-8")
    for now_ns in (TICK_NS - SETTLED_NS * 2, TICK_NS, TICK_NS + SETTLED_NS):
        file_clock.now_ns = now_ns
        assert stamp_of(file.stat()) is None
    file_clock.now_ns = TICK_NS + SETTLED_NS + 1
    stamp = stamp_of(file.stat())
    assert stamp is not None
    assert stamp[-2:] == (TICK_NS, TICK_NS)


def test_times_of_whole_seconds_settle_after_two(file_clock: FileClock) -> None:
    second_ns = TICK_NS // 10**9 * 10**9
    file_clock.now_ns = second_ns + COARSE_SETTLED_NS
    assert not is_settled(second_ns)
    assert is_settled(second_ns + 1)
    file_clock.now_ns += 1
    assert is_settled(second_ns)


def test_a_time_that_a_program_has_given_the_content_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.base.file_stamp.time_ns", lambda: 2**62)
    file = tmp_path / "file"
    file.write_text("one", encoding="utf-8")
    before = file.stat()
    seen = stamp_of(before)
    second = tmp_path / "second"
    second.write_text("two", encoding="utf-8")
    os.utime(second, ns=(before.st_atime_ns, before.st_mtime_ns))
    second.replace(file)  # of the same length and age
    assert seen is not None
    assert stamp_of(file.stat()) != seen
