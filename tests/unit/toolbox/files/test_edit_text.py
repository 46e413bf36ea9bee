"""`edit.text` through dispatch: exact text, one place, and help when it is not so."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from fakes.tool_lab import ToolLab, cage
from kaged.toolbox.files import file_tools
from kaged.workspace import ChangeKind, FileChange
from kaged.workspace.readlog import ReadLog
from requirements import requirement

CODER = "primary.subagents.coder"


@pytest.fixture
def lab(tmp_path: Path) -> ToolLab:
    return ToolLab(tmp_path, file_tools())


async def put(lab: ToolLab, data: bytes | str, name: str = "a") -> Path:
    """Put a file there and let the agent read it."""
    target = lab.root / name
    target.write_bytes(data.encode() if isinstance(data, str) else data)
    await lab.call("file.read", path=name)
    return target


async def edit(lab: ToolLab, old: str, new: str, **more: Any) -> Any:
    return await lab.call("edit.text", path="a", old_string=old, new_string=new, **more)


async def refused(lab: ToolLab, old: str, new: str, **more: Any) -> Any:
    return await lab.refusal("edit.text", path="a", old_string=old, new_string=new, **more)


@requirement("AT-EDIT-01")
async def test_one_known_text_is_replaced(lab: ToolLab) -> None:
    target = await put(lab, "one\ntwo\nthree\n")
    answer = await edit(lab, "two", "2")
    assert (answer["path"], answer["replacements"]) == ("./a", 1)
    assert target.read_bytes() == b"one\n2\nthree\n"
    incomplete: list[dict[str, Any]] = [
        {"path": "a", "old_string": "x"},
        {"path": "a", "new_string": "x"},
        {"old_string": "x", "new_string": "y"},
        {"path": "a", "old_string": "x", "new_string": "y", "replace_all": "yes"},
    ]
    for params in incomplete:
        assert (await lab.refusal_with("edit.text", params)).code == "invalid_params"


@requirement("AT-EDIT-02")
async def test_nothing_is_a_pattern_or_a_template(lab: ToolLab) -> None:
    target = await put(lab, "abc a.c ABC\n")
    assert (await refused(lab, "a.b", "x")).code == "old_string_not_found"
    assert (await refused(lab, "Abc", "x")).code == "old_string_not_found"
    await edit(lab, "a.c", r"\1 \g<0> $1 {x}")
    assert target.read_text(encoding="utf-8") == "abc \\1 \\g<0> $1 {x} ABC\n"


@requirement("AT-EDIT-03")
async def test_text_that_is_not_there_is_not_found(lab: ToolLab) -> None:
    target = await put(lab, "one\n")
    error = await refused(lab, "entirely different", "x")
    assert (error.code, error.number) == ("old_string_not_found", -32000)
    assert target.read_bytes() == b"one\n"


@requirement("AT-EDIT-04")
async def test_text_that_is_there_three_times_is_not_unique(lab: ToolLab) -> None:
    target = await put(lab, "x = 1\ny\nx = 2\nz\n  x = 3\n")
    error = await refused(lab, "x = ", "v = ")
    assert error.code == "multiple_matches"
    assert error.detail["count"] == 3
    assert error.detail["matches"] == [
        {"line": 1, "text": "x = 1"},
        {"line": 3, "text": "x = 2"},
        {"line": 5, "text": "  x = 3"},
    ]
    assert target.read_bytes() == b"x = 1\ny\nx = 2\nz\n  x = 3\n"


async def test_overlapping_places_are_not_unique_either(lab: ToolLab) -> None:
    await put(lab, "aaa")
    error = await refused(lab, "aa", "b")
    assert (error.code, error.detail["count"]) == ("multiple_matches", 2)
    answer = await edit(lab, "aa", "b", replace_all=True)
    assert answer["replacements"] == 1
    assert (lab.root / "a").read_bytes() == b"ba"


@requirement("AT-EDIT-05")
async def test_all_occurrences_are_replaced_when_asked(lab: ToolLab) -> None:
    target = await put(lab, "ab ab\nab\n")
    assert (await edit(lab, "ab", "abab", replace_all=True))["replacements"] == 3
    assert target.read_bytes() == b"abab abab\nabab\n"


@requirement("AT-EDIT-06")
async def test_the_same_text_twice_is_no_change_before_anything_else(lab: ToolLab) -> None:
    assert (await refused(lab, "same", "same")).code == "no_change", "the file need not exist"
    await put(lab, "one\n")
    assert (await refused(lab, "absent", "absent")).code == "no_change"


@requirement("AT-EDIT-07")
async def test_an_empty_old_text_is_refused_and_an_empty_new_one_deletes(lab: ToolLab) -> None:
    target = await put(lab, "keep drop keep\n")
    assert (await refused(lab, "", "x")).code == "invalid_params"
    await edit(lab, " drop", "")
    assert target.read_bytes() == b"keep keep\n"
    await edit(lab, "keep keep\n", "")
    assert target.read_bytes() == b""


@requirement("AT-EDIT-08")
async def test_a_file_must_be_read_first(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"one")
    assert (await refused(lab, "one", "two")).code == "file_not_read"
    assert (lab.root / "a").read_bytes() == b"one"


@requirement("AT-EDIT-09", "AT-FAIL-07")
async def test_a_file_that_changed_since_is_not_edited(lab: ToolLab) -> None:
    target = await put(lab, "one two\n")
    target.write_bytes(b"one two three\n")
    assert (await refused(lab, "two", "2")).code == "file_changed_since_read"
    assert target.read_bytes() == b"one two three\n"
    await lab.call("file.read", path="a")
    await edit(lab, "two", "2")
    assert target.read_bytes() == b"one 2 three\n"


@requirement("AT-EDIT-09", "AT-FAIL-07")
async def test_a_change_in_the_middle_of_an_edit_is_not_written_over(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await put(lab, "one two\n")
    passed = ReadLog.require

    def require(*given: Any) -> None:
        passed(*given)
        target.write_bytes(b"one two, said another\n")  # after it was read, before it is written

    monkeypatch.setattr(ReadLog, "require", require)
    assert (await refused(lab, "two", "2")).code == "file_changed_since_read"
    assert target.read_bytes() == b"one two, said another\n"


@requirement("AT-EDIT-10")
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (
            b"\xef\xbb\xbfone\r\ntwo\r\nthree",
            "two",
            "2",
            b"\xef\xbb\xbfone\r\n2\r\nthree",
        ),
        (b"\xef\xbb\xbfone\n", "one", "1", b"\xef\xbb\xbf1\n"),
        (b"caf\xe9 one \xff\xfe\n", "one", "1", b"caf\xe9 1 \xff\xfe\n"),
        (b"a\r\nb\nc\rd\n", "b", "B", b"a\r\nB\nc\rd\n"),
        ("ein Bär\r\n".encode(), "Bär", "Wölfchen", "ein Wölfchen\r\n".encode()),
        (b"no newline at end", "end", "END", b"no newline at END"),
    ],
)
async def test_only_the_intended_bytes_differ(
    lab: ToolLab, before: bytes, old: str, new: str, after: bytes
) -> None:
    target = await put(lab, before)
    await edit(lab, old, new)
    assert target.read_bytes() == after


@requirement("AT-EDIT-11")
async def test_newlines_mean_crlf_where_the_file_has_crlf(lab: ToolLab) -> None:
    target = await put(lab, b"one\r\ntwo\r\nthree\r\n")
    await edit(lab, "one\ntwo", "1\n1.5\n2")
    assert target.read_bytes() == b"1\r\n1.5\r\n2\r\nthree\r\n"
    await edit(lab, "1.5\r\n2", "x\r\ny")
    assert target.read_bytes() == b"1\r\nx\r\ny\r\nthree\r\n"
    assert target.read_bytes().count(b"\n") == target.read_bytes().count(b"\r\n")


async def test_mixed_line_endings_match_because_nobody_sees_them(lab: ToolLab) -> None:
    target = await put(lab, b"one\r\ntwo\nthree\r\nfour\n")
    answer = await edit(lab, "one\ntwo\nthree", "1\n2\n3")
    assert answer["match"] == "line_endings"
    assert target.read_bytes() == b"1\r\n2\r\n3\r\nfour\n"
    await edit(lab, "four", "4\n5")
    assert target.read_bytes() == b"1\r\n2\r\n3\r\n4\n5\n", "an exact match is taken literally"


async def test_crlf_sent_to_a_file_without_matches_too(lab: ToolLab) -> None:
    target = await put(lab, b"one\ntwo\n")
    await edit(lab, "one\r\ntwo", "1\n2")
    assert target.read_bytes() == b"1\n2\n"


@requirement("AT-EDIT-12", "AT-PERM-18")
async def test_a_read_only_cage_allows_no_edit(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.ts").write_bytes(b"one")
    lab = ToolLab(tmp_path, file_tools(), cage("ro ./src", root=tmp_path), CODER)
    await lab.call("file.read", path="./src/main.ts")
    error = await lab.refusal("edit.text", path="./src/main.ts", old_string="one", new_string="two")
    assert (error.code, error.detail) == ("capability_denied", "rw:fs:./src/main.ts")
    assert (tmp_path / "src" / "main.ts").read_bytes() == b"one"


@requirement("AT-EDIT-13")
async def test_what_is_missing_or_no_text_is_said(lab: ToolLab) -> None:
    assert (await refused(lab, "x", "y")).code == "file_not_found"
    (lab.root / "a").mkdir()
    assert (await refused(lab, "x", "y")).code == "invalid_params"
    (lab.root / "a").rmdir()
    (lab.root / "a").write_bytes(b"\x89PNG\r\n\x1a\n x")
    await lab.call("file.read", path="a")
    assert (await refused(lab, "x", "y")).code == "invalid_params"
    (lab.root / "a").unlink()
    os.mkfifo(lab.root / "a")
    assert (await refused(lab, "x", "y")).code == "invalid_params"


@requirement("AT-EDIT-14")
async def test_two_edits_in_a_row_need_one_read_and_leave_two_events(lab: ToolLab) -> None:
    heard: list[FileChange] = []
    await put(lab, "one two two\n")
    lab.workspace.changes.subscribe(heard.append)
    await edit(lab, "one", "1")
    await edit(lab, "two", "2", replace_all=True)
    events = [
        (data["path"], data["replacements"], data["caller"]) for data in lab.audit.of("file.edited")
    ]
    assert events == [("./a", 1, "primary"), ("./a", 2, "primary")]
    assert [(one.kind, one.content) for one in heard] == [
        (ChangeKind.CHANGED, b"1 two two\n"),
        (ChangeKind.CHANGED, b"1 2 2\n"),
    ]
    await refused(lab, "absent text", "x")
    assert len(lab.audit.of("file.edited")) == 2


@requirement("AT-EDIT-15")
async def test_an_edit_keeps_the_mode_and_leaves_no_part(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await put(lab, "#!/bin/sh\necho one\n")
    target.chmod(0o755)
    await edit(lab, "one", "two")
    assert target.stat().st_mode & 0o777 == 0o755

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("kaged.workspace.staging.os.write", full)
        error = await refused(lab, "two", "three")
    assert error.code == "file_write_failed"
    assert target.read_bytes() == b"#!/bin/sh\necho two\n"
    assert [one.name for one in lab.root.iterdir()] == ["a"]


@requirement("AT-EDIT-16")
async def test_the_first_thing_that_is_wrong_is_reported(lab: ToolLab) -> None:
    assert (await refused(lab, "x", "x")).code == "no_change"
    assert (await refused(lab, "x", "y")).code == "file_not_found"
    (lab.root / "a").write_bytes(b"\0")
    assert (await refused(lab, "x", "y")).code == "invalid_params", "wrong kind before not read"
    (lab.root / "a").write_bytes(b"one")
    assert (await refused(lab, "absent", "y")).code == "file_not_read"
    await lab.call("file.read", path="a")
    (lab.root / "a").write_bytes(b"changed")
    assert (await refused(lab, "one", "y")).code == "file_changed_since_read"
    await lab.call("file.read", path="a")
    assert (await refused(lab, "one", "y")).code == "old_string_not_found"
    # Two agents edit one version: everything is checked under the lock, so one wins.
    (lab.root / "a").write_bytes(b"version one\n")
    coder = ToolLab(lab.root, file_tools(), caller=CODER, workspace=lab.workspace)
    for who in (lab, coder):
        await who.call("file.read", path="a")
    outcomes = await asyncio.gather(
        edit(lab, "version", "primary"), edit(coder, "one", "coder"), return_exceptions=True
    )
    codes = sorted(getattr(one, "code", "edited") for one in outcomes)
    assert codes == ["edited", "file_changed_since_read"]


@requirement("AT-AMB-13")
async def test_text_is_addressed_by_itself_and_by_no_hash(lab: ToolLab) -> None:
    target = await put(lab, "one\n")
    assert (await edit(lab, "one", "two"))["replacements"] == 1
    assert target.read_bytes() == b"two\n"
    error = await lab.refusal(
        "edit.text", path="a", patch="@@ 1a2b", old_string="a", new_string="b"
    )
    assert error.code == "invalid_params"


@requirement("AT-FILE-16")
async def test_a_file_that_vanished_or_became_a_directory_is_said(lab: ToolLab) -> None:
    target = await put(lab, "one\n")
    target.unlink()
    error = await refused(lab, "one", "two")
    assert error.code == "file_not_found"
    assert error.detail == {"path": "./a", "requested": "a"}
    target.mkdir()
    assert (await refused(lab, "one", "two")).code == "invalid_params"


async def test_composed_and_decomposed_letters_are_different_text(lab: ToolLab) -> None:
    await put(lab, "caf\u00e9\n")
    error = await refused(lab, "cafe\u0301", "x")
    assert error.code == "old_string_not_found"
    assert error.detail["closest"]["cause"] == "characters"


# -- several edits at once ----------------------------------------------------------------------


@requirement("AT-BEY-12")
async def test_several_replacements_happen_together_or_not_at_all(lab: ToolLab) -> None:
    target = await put(lab, "one two three\n")
    more = [
        {"old_string": "two", "new_string": "2"},
        {"old_string": "absent words", "new_string": "x"},
    ]
    error = await refused(lab, "one", "1", more_edits=more)
    assert (error.code, error.detail["edit"]) == ("old_string_not_found", 2)
    assert target.read_bytes() == b"one two three\n"
    answer = await edit(lab, "one", "1 1", more_edits=[
        {"old_string": "1", "new_string": "uno", "replace_all": True}, more[0],
    ])  # fmt: skip
    assert answer["replacements"] == 4
    assert target.read_bytes() == b"uno uno 2 three\n"
    error = await refused(lab, "uno uno", "1", more_edits=[{"old_string": "x", "new_string": "x"}])
    assert (error.code, error.detail) == ("no_change", {"edit": 1})
    error = await refused(lab, "2", "o o", more_edits=[{"old_string": "o", "new_string": "x"}])
    assert (error.code, error.detail["edit"]) == ("multiple_matches", 1)
    assert target.read_bytes() == b"uno uno 2 three\n"


# -- what an edit says --------------------------------------------------------------------------


async def test_an_edit_shows_what_it_changed(lab: ToolLab) -> None:
    await put(lab, "".join(f"line {number}\n" for number in range(1, 11)))
    answer = await edit(lab, "line 5\nline 6", "five\nsix\nmore")
    assert answer["first_line"] == 5
    assert answer["diff"].split("\n") == [
        "--- ./a",
        "+++ ./a",
        "@@ -2,8 +2,9 @@",
        " line 2",
        " line 3",
        " line 4",
        "-line 5",
        "-line 6",
        "+five",
        "+six",
        "+more",
        " line 7",
        " line 8",
        " line 9",
    ]


async def test_a_huge_edit_shows_a_part_of_it(lab: ToolLab) -> None:
    await put(lab, "x\n" * 5000)
    answer = await edit(lab, "x", "y" * 1000, replace_all=True)
    assert answer["replacements"] == 5000
    assert len(answer["diff"]) < 40_000
    assert "more regions" in answer["diff"]


@requirement("AT-BEY-13")
async def test_a_near_miss_is_pointed_out(lab: ToolLab) -> None:
    await put(lab, "def f():\n\tif x:\n\t\treturn 1\n\n\ndef g():\n    pass\n")
    error = await refused(lab, "    if x:\n        return 1\n", "y")
    closest = error.detail["closest"]
    assert (closest["start_line"], closest["end_line"], closest["cause"]) == (2, 4, "whitespace")
    assert closest["text"].startswith("\tif x:\n\t\treturn 1")
    assert closest["first_difference"]["line"] == 2
    assert 0 < closest["similarity"] <= 1
    assert "indentation" in str(error)


async def test_too_many_places_for_one_edit_are_refused(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.toolbox.files.matching.MAX_SPANS", 20)
    monkeypatch.setattr("kaged.toolbox.files.edit.MAX_SPANS", 20)
    target = await put(lab, "x\n" * 21)
    assert (await refused(lab, "x", "y")).detail["count"] == 21
    assert (await refused(lab, "x", "y", replace_all=True)).code == "invalid_params"
    assert target.read_bytes() == b"x\n" * 21
    await put(lab, b"x\r\ny\n" * 21)
    assert (await refused(lab, "x\ny", "z", replace_all=True)).code == "invalid_params"
