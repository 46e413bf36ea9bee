"""Lines, matches and diffs on their own: whatever the bytes, the arithmetic holds."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.files.diff import MAX_DIFF_LINES, unified_diff
from kaged.toolbox.files.matching import TextMatch, find, replace, split_bom
from kaged.toolbox.files.window import CUT_MARK, MAX_LINE_CHARS, LineWindow

_BYTES = st.binary(max_size=300) | st.lists(
    st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b"\r", b"\xff", "é".encode(), b"\xef\xbb\xbf"]),
    max_size=60,
).map(b"".join)


def plain_lines(data: bytes) -> list[str]:
    """Do the same in the most obvious way."""
    text = data.removeprefix(b"\xef\xbb\xbf")
    if not text:
        return []
    lines = text.removesuffix(b"\n").split(b"\n") if text != b"\n" else [b""]
    return [line.decode("utf-8", "replace").removesuffix("\r") for line in lines]


@given(
    data=_BYTES,
    offset=st.integers(1, 30),
    limit=st.integers(1, 30),
    cuts=st.lists(st.integers(0, 300), max_size=5),
)
def test_a_window_is_the_same_however_the_bytes_arrive(
    data: bytes, offset: int, limit: int, cuts: list[int]
) -> None:
    window = LineWindow(offset, limit)
    # The mark at the beginning is looked for in the first bytes, which come in one piece.
    edges = [0, *sorted({max(cut, 3) for cut in cuts if cut < len(data)}), len(data)]
    for start, end in pairwise(edges):
        window.feed(data[start:end])
    window.finish()
    content, following = window.numbered()
    expected = plain_lines(data)
    shown = expected[offset - 1 : offset - 1 + limit]
    assert window.total_lines == len(expected)
    assert content == "\n".join(f"{offset + index}: {line}" for index, line in enumerate(shown))
    assert following == offset + len(shown)


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=4), st.sampled_from("xé€😀"))
def test_long_lines_are_cut_at_the_same_place_however_they_arrive(
    lengths: list[int], char: str
) -> None:
    data = "\r\n".join(char * length for length in lengths).encode()
    window = LineWindow(1, 100)
    for start in range(0, len(data), 1000):
        window.feed(data[start : start + 1000])
    window.finish()
    expected = [
        char * length if length <= MAX_LINE_CHARS else char * MAX_LINE_CHARS + CUT_MARK
        for length in lengths
    ]
    if data and lengths[-1] == 0:
        expected.pop()
    if not data:
        expected = []
    content, _ = window.numbered()
    assert content == "\n".join(f"{i}: {line}" for i, line in enumerate(expected, 1))


@given(data=_BYTES, old=st.sampled_from([b"a", b"bb", b"a\n", b"\n", b"aa", b"\r\n"]), new=_BYTES)
def test_bytes_outside_the_replaced_places_stay(data: bytes, old: bytes, new: bytes) -> None:
    mark, body = split_bom(data)
    assert mark + body == data
    found = find(body, old)
    edit = replace(body, found, new)
    at = 0
    rest = edit.after
    for (start, end), piece in zip(edit.spans, edit.pieces, strict=True):
        assert rest.startswith(body[at:start] + piece)
        rest = rest[start - at + len(piece) :]
        at = end
    assert rest == body[at:]


def applied(before: list[str], diff: str) -> list[str]:
    """Apply a diff the way `patch` does, insisting that every context line is there."""
    after: list[str] = []
    at = 0
    for hunk in re.split(r"^(?=@@ )", diff, flags=re.MULTILINE)[1:]:
        head, _, rest = hunk.partition("\n")
        found = re.match(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", head)
        assert found is not None
        old_start, old_size, new_start, new_size = map(int, found.groups())
        begin = old_start - 1 if old_size else old_start
        assert begin >= at, "hunks are in order and do not overlap"
        after += before[at:begin]
        assert len(after) == (new_start - 1 if new_size else new_start)
        at = begin
        lines = rest.removesuffix("\n").split("\n") if rest else []
        for line in lines:
            if line[0] in " -":
                assert before[at] == line[1:]
                at += 1
            if line[0] in " +":
                after.append(line[1:])
        assert at - begin == old_size
        assert sum(line[0] in " +" for line in lines) == new_size
    return after + before[at:]


@given(
    lines=st.lists(st.sampled_from(["a", "b", "xax", "", "axa", "c c"]), max_size=40),
    old=st.sampled_from(["a", "b", "a\n", "xax\n", "\na", "c"]),
    new=st.sampled_from(["", "new", "one\ntwo", "one\n", "\n\n"]),
    ends=st.sampled_from(["", "\n"]),
)
def test_a_diff_leads_from_the_old_text_to_the_new(
    lines: list[str], old: str, new: str, ends: str
) -> None:
    body = ("\n".join(lines) + ends).encode()
    found = find(body, old.encode())
    if not found.spans:
        return
    edit = replace(body, found, new.encode())
    diff = unified_diff(edit, "./a")
    if "… cut here" in diff:
        assert len(diff.split("\n")) == MAX_DIFF_LINES + 1
        return
    assert applied(plain_lines(edit.before), diff) == plain_lines(edit.after)


def test_a_pathological_text_is_searched_in_linear_time() -> None:
    """Overlapping places are not counted one by one; that would take hours here."""
    found = find(b"a" * 2_000_000, b"a" * 1_500_000)
    assert (len(found.spans), found.count) == (1, 2)


def test_a_file_with_crlf_throughout_is_matched_exactly() -> None:
    assert find(b"a\r\nb\r\n", b"a\nb").match == "exact"
    assert find(b"a\r\nb\n", b"a\nb").match == "line_endings"
    assert find(b"a\nb\n", b"zz") == TextMatch((), 0)


def test_very_many_places_in_one_line_are_shown_in_linear_time() -> None:
    body = b"a b " * 50_000
    found = find(body, b"a")
    diff = unified_diff(replace(body, found, b"c"), "./a")
    assert found.count == 50_000
    assert len(diff) < 2000
    assert "more regions" in diff


def test_places_far_from_each_other_are_hunks_of_their_own() -> None:
    body = "".join(f"line {number}\n" for number in range(1, 41)).encode()
    edit = replace(body, find(body, b"0\n"), b"0\nmore\n")
    diff = unified_diff(edit, "./a")
    assert re.findall(r"^@@.*", diff, re.MULTILINE) == [
        "@@ -8,6 +8,7 @@",
        "@@ -18,6 +19,7 @@",
        "@@ -28,6 +30,7 @@",
        "@@ -38,3 +41,4 @@",
    ]
    assert applied(plain_lines(edit.before), diff) == plain_lines(edit.after)


def test_only_lines_that_changed_are_marked() -> None:
    """What is replaced is quoted with lines around it; those stay."""
    body = "".join(f"line {number}\n" for number in range(1, 41)).encode()
    old = b"".join(b"line %d\n" % number for number in range(5, 36))
    new = old.replace(b"line 7\n", b"line seven\n").replace(b"line 30\n", b"")
    diff = unified_diff(replace(body, find(body, old), new + b"added\n"), "./a")
    marked = [line for line in diff.split("\n")[2:] if line[0] in "-+"]
    assert marked == ["-line 7", "+line seven", "-line 30", "+added"]
    assert diff.count("@@ -") == 2
    assert applied(plain_lines(body), diff) == plain_lines(body.replace(old, new + b"added\n"))
    long = b"".join(b"%d\n" % number for number in range(2000))
    edit = replace(b"x\n" + long, find(b"x\n" + long, long), long.replace(b"1000\n", b"one\n"))
    assert [one for one in unified_diff(edit, "./a").split("\n")[2:] if one[0] in "-+"] == [
        "-1000",
        "+one",
    ]
