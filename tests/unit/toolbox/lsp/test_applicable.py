"""Edits of a server as edit.text takes them: made one by one, they give what the server meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaged.toolbox.lsp.applicable import applicable
from kaged.toolbox.lsp.edits import TextEdit, apply_edits
from kaged.toolbox.lsp.positions import SourceText, Spot

WORDS = st.text(alphabet="ab\n", max_size=30)


@given(WORDS, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), WORDS), max_size=4))
def test_made_one_after_another_they_are_what_the_server_meant(
    text: str, drawn: list[tuple[int, int, str]]
) -> None:
    edits: list[TextEdit] = []
    free = 0
    for start, length, new in sorted(drawn):
        begin = max(start, free)
        if begin + length <= len(text) and (not edits or begin > edits[-1].start):
            edits.append(TextEdit(begin, begin + length, new, Spot(1, 0)))
            free = begin + length
    made = applicable(text, edits)
    if made is None:
        assert text.count(text) != 1 or not text  # only an empty file has nothing to be found by
        return
    got = text
    for one in made:
        assert got.count(one.old) == 1
        got = got.replace(one.old, one.new, 1)
    assert got == apply_edits(SourceText(text), edits)


def test_what_can_be_found_stays_as_short_as_it_is() -> None:
    (made,) = applicable("one two three\n", [TextEdit(4, 7, "2", Spot(1, 4))]) or []
    assert (made.old, made.new) == ("two", "2")
    (made,) = applicable("x\nx\ny\n", [TextEdit(2, 2, "z", Spot(2, 0))]) or []
    assert "\n" in made.old
    assert applicable("", [TextEdit(0, 0, "x", Spot(1, 0))]) is None


def test_only_edits_that_quote_each_other_become_one() -> None:
    text = "a\na\nb\n" + "".join(f"line {number}\n" for number in range(50)) + "end\n"
    near = [TextEdit(0, 0, "x", Spot(1, 0)), TextEdit(2, 2, "y", Spot(2, 0))]
    far = TextEdit(text.index("end"), text.index("end") + 3, "END", Spot(54, 0))
    made = applicable(text, [*near, far]) or []
    assert [one.new for one in made][1:] == ["END"]
    assert len(made[0].old) < 20
