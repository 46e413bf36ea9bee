from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.toolbox.search.lines import LINE_CHARS, PER_FILE, content_of, fair_share, fill
from kaged.toolbox.search.records import CountReader, HitReader, PathReader, RawCount, RawHit
from thorough import examples

PATHS = st.binary(min_size=1, max_size=12).filter(lambda raw: b"\0" not in raw)
TEXTS = st.binary(max_size=60).filter(lambda raw: b"\0" not in raw and b"\n" not in raw)
HITS = st.lists(st.tuples(PATHS, st.integers(1, 10**6), st.integers(1, 99), TEXTS), max_size=12)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(HITS, st.lists(st.integers(0, 40), max_size=8))
@settings(max_examples=examples(40))
def test_hits_are_read_whatever_their_paths_and_wherever_the_pipe_cuts(
    hits: list[tuple[bytes, int, int, bytes]], sizes: list[int]
) -> None:
    raw = b"".join(b"%b\0%d:%d:%b\n" % hit for hit in hits)
    reader = HitReader(1000)
    for piece in cut(raw, sizes):
        assert not reader.feed(piece)
    assert reader.finish() == [RawHit(*hit) for hit in hits]


@given(st.lists(PATHS, max_size=12), st.lists(st.integers(0, 20), max_size=8))
def test_paths_are_read_whatever_they_hold(paths: list[bytes], sizes: list[int]) -> None:
    raw = b"".join(path + b"\0" for path in paths)
    reader = PathReader(1000)
    counter = CountReader(1000, counted=False)
    for piece in cut(raw, sizes):
        reader.feed(piece)
        counter.feed(piece)
    assert reader.paths == paths
    assert counter.total == len(paths)


def test_the_cap_counts_exactly() -> None:
    raw = b"".join(b"./a\0%d:1:x\n" % number for number in range(5))
    exact, less = HitReader(5), HitReader(4)
    assert not exact.feed(raw)
    assert (len(exact.hits), exact.capped) == (5, False)
    assert less.feed(raw)
    assert (len(less.hits), less.capped) == (4, True)


def test_remarks_about_binary_files_take_their_hits_away() -> None:
    remark = b"./b: WARNING: stopped searching binary file after match "
    remark += b'(found "\\0" byte around offset 7)\n'
    reader = HitReader(9)
    reader.feed(b"./b\x001:1:x\n" + remark + b"./c\x001:1:y\n./b2\x001:1:z\n" + remark[:3])
    reader.feed(remark[3:])
    assert [hit.path for hit in reader.finish()] == [b"./c", b"./b2"]


def test_a_line_of_any_length_costs_little_and_keeps_its_match() -> None:
    reader = HitReader(9)
    reader.feed(b"./a\x001:300001:")
    for _ in range(30):
        reader.feed(b"x" * 10_000)
        assert len(reader._rest) < 200_000
    reader.feed(b"hit" + b"y" * 500_000)
    reader.feed(b"\n./b\x002:1:next\n")
    first, second = reader.finish()
    assert first.cut
    assert b"hit" in first.text
    assert len(first.text) < 10_000
    assert "hit" in content_of(first)
    assert second == RawHit(b"./b", 2, 1, b"next")


def test_the_first_entries_by_path_are_kept_and_all_are_counted() -> None:
    reader = CountReader(10, counted=True)
    for number in range(4999, -1, -1):
        reader.feed(b"./%04d\x002\n" % number)
    assert reader.total == 10_000
    assert len(reader.finish()) < 2_000
    assert sorted(reader.finish())[:10] == [RawCount(b"./%04d" % n, 2) for n in range(10)]
    assert reader.dropped


def test_a_path_is_asked_for_once_per_run_of_hits() -> None:
    asked: list[bytes] = []

    def keep(path: bytes) -> bool:
        asked.append(path)
        return path != b"./no"

    reader = HitReader(9, keep)
    reader.feed(b"./no\x001:1:x\n./no\x002:1:x\n./yes\x001:1:x\n./yes\x002:1:x\n")
    assert asked == [b"./no", b"./yes"]
    assert [hit.line for hit in reader.finish()] == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=120), st.integers(1, 90))
def test_a_fair_share_is_sorted_full_and_leaves_no_file_out_without_need(
    raw: list[tuple[int, int]], limit: int
) -> None:
    hits = sorted(RawHit(b"./%d" % file, line, 1, b"") for file, line in set(raw))
    chosen = fair_share(hits, limit)
    assert chosen == sorted(chosen)
    assert len(chosen) == min(limit, len(hits))
    if limit >= 4 * PER_FILE:
        assert {hit.path for hit in chosen} == {hit.path for hit in hits}


@pytest.mark.parametrize("column", [1, 1500, 1900, 2500, 9000, 9998])
def test_a_cut_line_shows_its_match(column: int) -> None:
    text = b"x" * (column - 1) + b"HIT" + b"y" * (10_000 - column)
    shown = content_of(RawHit(b"./a", 1, column, text))
    assert "HIT" in shown
    assert shown.endswith("[truncated]")
    assert len(shown) <= LINE_CHARS + len("…[truncated]")


async def test_filling_stops_at_whole_entries() -> None:
    entries, all_of_them = await fill(list(range(100)), lambda n: {"n": "x" * 10}, 200)
    assert not all_of_them
    assert 0 < len(entries) < 12
    entries, all_of_them = await fill(list(range(3)), lambda n: {"n": n}, 200)
    assert (len(entries), all_of_them) == (3, True)
