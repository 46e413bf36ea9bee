"""`edit.text` in a running daemon: exact replacing, refusals in order, bytes left as they are."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly
from whole.harness.project import Project

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


def given(project: Project, content: str | bytes, path: str = "a.txt") -> None:
    """Write a file and let the primary agent read it."""
    project.write(path, content)
    project.call("file.read", path=path)


def edit(project: Project, old: str, new: str, **more: Any) -> Any:
    """Replace in `a.txt`; it has to work."""
    return project.call("edit.text", path="a.txt", old_string=old, new_string=new, **more)


def refused(project: Project, old: str, new: str, **more: Any) -> dict[str, Any]:
    """Replace in `a.txt`; it has to fail, and the file stays as it is."""
    before = (project.root / "a.txt").read_bytes()
    got = project.fail("edit.text", path="a.txt", old_string=old, new_string=new, **more)
    assert (project.root / "a.txt").read_bytes() == before
    return got


@whole("AT-EDIT-01")
def test_one_known_text_is_replaced_by_another(project: Project) -> None:
    given(project, "one fish\ntwo fish\n")
    got = edit(project, "one", "red")
    assert (got["path"], got["replacements"]) == ("./a.txt", 1)
    assert project.read("a.txt") == "red fish\ntwo fish\n"
    for bad in (
        {"old_string": None},
        {"new_string": None},
        {"path": None},
        {"old_string": 1},
        {"new_string": ["x"]},
        {"replace_all": "yes"},
        {"replace_all": 1},
        {"unknown": 1},
    ):
        wanted: dict[str, Any] = {"path": "a.txt", "old_string": "red", "new_string": "x", **bad}
        params = {key: value for key, value in wanted.items() if value is not None}
        assert project.fail("edit.text", **params)["code"] == "invalid_params", bad
    assert project.read("a.txt") == "red fish\ntwo fish\n"


@whole("AT-EDIT-02", "AT-AMB-13")
@pytest.mark.parametrize(
    ("text", "old", "new", "after"),
    [
        ("abc a.c", "a.c", "x", "abc x"),
        ("(a)+", "(a)+", r"\1", r"\1"),
        ("value", "value", r"\g<0> $1 ${x} {y} %s &", r"\g<0> $1 ${x} {y} %s &"),
        ("Abc abc", "abc", "x", "Abc x"),
        ("[a-z]* x", "[a-z]*", "^$", "^$ x"),
        ("a  b a b", "a b", "x", "a  b x"),
    ],
)
def test_text_is_taken_by_its_letters_and_no_pattern_or_template(
    project: Project, text: str, old: str, new: str, after: str
) -> None:
    given(project, text)
    assert edit(project, old, new)["replacements"] == 1
    assert project.read("a.txt") == after


@whole("AT-EDIT-02", "AT-EDIT-03")
@pytest.mark.parametrize("old", ["a.c", "ABC", "abc ", "\tabc", "ab\nc", "x*"])
def test_what_does_not_occur_is_not_found(project: Project, old: str) -> None:
    given(project, "abc\n")
    assert refused(project, old, "x")["code"] == "old_string_not_found"
    assert refused(project, old, "x", replace_all=True)["code"] == "old_string_not_found"


@whole("AT-EDIT-04", "AT-EDIT-05")
def test_three_places_are_three_matches_or_three_replacements(project: Project) -> None:
    given(project, "a-x b-x c-x\n")
    got = refused(project, "-x", "-y")
    assert (got["code"], got["data"]["detail"]["count"]) == ("multiple_matches", 3)
    assert refused(project, "-x", "-y", replace_all=False)["code"] == "multiple_matches"
    assert edit(project, "-x", "-y", replace_all=True)["replacements"] == 3
    assert project.read("a.txt") == "a-y b-y c-y\n"


@whole("AT-EDIT-05")
def test_places_that_overlap_are_replaced_once_and_new_text_is_not_looked_into(
    project: Project,
) -> None:
    given(project, "aaaaa")
    assert edit(project, "aa", "aaa", replace_all=True)["replacements"] == 2
    assert project.read("a.txt") == "aaaaaaa"
    assert edit(project, "aaaaaaa", "b", replace_all=True)["replacements"] == 1


@whole("AT-EDIT-06")
def test_equal_texts_are_no_change_before_anything_is_looked_at(project: Project) -> None:
    project.write("a.txt", "unread\n")
    assert refused(project, "absent", "absent")["code"] == "no_change"
    for path in ("nothing.txt", "."):
        got = project.fail("edit.text", path=path, old_string="x", new_string="x")
        assert got["code"] == "no_change", path


@whole("AT-EDIT-07")
def test_nothing_cannot_be_replaced_but_a_text_can_become_nothing(project: Project) -> None:
    given(project, "one two\n")
    assert refused(project, "", "x")["code"] == "invalid_params"
    assert edit(project, " two", "")["replacements"] == 1
    assert project.read("a.txt") == "one\n"


@whole("AT-EDIT-08", "AT-EDIT-09", "AT-FAIL-07")
def test_a_file_is_edited_as_it_was_read_or_not_at_all(
    project: Project, agent: Callable[..., str]
) -> None:
    file = project.write("a.txt", "one fish\n")
    assert refused(project, "one", "two")["code"] == "file_not_read"
    project.call("file.read", agent("other", "ro:."), path="a.txt")
    assert refused(project, "one", "two")["code"] == "file_not_read"
    project.call("file.read", path="a.txt")
    before = file.stat()
    project.write("a.txt", "one cats\n")  # as long as before, and as old by its time stamps
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert refused(project, "one", "two")["code"] == "file_changed_since_read"
    project.call("file.read", path="a.txt")
    edit(project, "one", "two")
    assert project.read("a.txt") == "two cats\n"
    project.write("a.txt", "two dogs\n")  # changed after the agent's own edit
    assert refused(project, "two", "six")["code"] == "file_changed_since_read"


@whole("AT-EDIT-10")
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (
            b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n",
            "two",
            "2\N{GREEK SMALL LETTER BETA}",
            b"\xef\xbb\xbfone\r\n2\xce\xb2\r\nthree\r\n",
        ),
        (b"one\ntwo\r\nthree\rfour", "three", "3", b"one\ntwo\r\n3\rfour"),
        (b"caf\xe9 \xff one\n", "one", "two", b"caf\xe9 \xff two\n"),
        ("e\u0301 \xe9 x".encode(), "\xe9", "e", "e\u0301 e x".encode()),
        (b"\xef\xbb\xbfone", "one", "two", b"\xef\xbb\xbftwo"),
        (b"one\n\n\n", "one", "two", b"two\n\n\n"),
    ],
)
def test_bytes_around_the_replaced_text_stay_as_they_were(
    project: Project, before: bytes, old: str, new: str, after: bytes
) -> None:
    given(project, before)
    edit(project, old, new)
    assert (project.root / "a.txt").read_bytes() == after


@whole("AT-EDIT-11")
def test_in_a_file_of_crlf_a_new_line_is_one_in_both_texts(project: Project) -> None:
    given(project, b"one\r\ntwo\r\nthree\r\n")
    assert edit(project, "one\ntwo\n", "1\n1.5\n2\n")["replacements"] == 1
    assert (project.root / "a.txt").read_bytes() == b"1\r\n1.5\r\n2\r\nthree\r\n"
    edit(project, "2\r\nthree", "2\r\n3")
    assert (project.root / "a.txt").read_bytes() == b"1\r\n1.5\r\n2\r\n3\r\n"


@whole("AT-EDIT-12")
def test_editing_needs_a_cage_that_says_rw(project: Project, agent: Callable[..., str]) -> None:
    project.write("src/main.ts", "let a\n")
    project.write("out/main.ts", "let a\n")
    (project.root / "out" / "link").symlink_to("../src/main.ts")
    caged = agent("caged", "ro:src", "rw:out")
    wanted = {"old_string": "a", "new_string": "b"}
    for path in ("src/main.ts", "out/main.ts"):
        project.call("file.read", caged, path=path)
    for path in ("./src/main.ts", "./out/link"):
        got = project.fail("edit.text", caged, path=path, **wanted)
        assert got["code"] == "capability_denied", got
    assert project.read("src/main.ts") == "let a\n"
    project.call("edit.text", caged, path="out/main.ts", **wanted)
    assert project.read("out/main.ts") == "let b\n"


@whole("AT-EDIT-13")
@pytest.mark.parametrize(
    ("path", "code"),
    [("nothing.txt", "file_not_found"), ("folder", "invalid_params"), ("p.png", "invalid_params")],
)
def test_only_text_files_that_are_there_are_edited(project: Project, path: str, code: str) -> None:
    (project.root / "folder").mkdir()
    project.write("p.png", PNG)
    if path != "nothing.txt":
        project.call("file.read", path=path)
    assert project.fail("edit.text", path=path, old_string="PNG", new_string="x")["code"] == code
    assert (project.root / "p.png").read_bytes() == PNG


@whole("AT-EDIT-14")
def test_two_edits_in_a_row_need_one_reading_and_are_on_record_twice(
    daemon: Daemon, project: Project
) -> None:
    given(project, "x x one\n")
    edit(project, "x", "y", replace_all=True)
    edit(project, "one", "two")
    refused(project, "absent", "z")

    def rows() -> list[dict[str, Any]]:
        return [one["data"] for one in daemon.audit("file.edited", project_id=project.id)]

    common = {"path": "./a.txt", "caller": "primary", "tool_name": "edit.text"}
    assert exactly(2, rows) == [{**common, "replacements": 2}, {**common, "replacements": 1}]


@whole("AT-EDIT-15")
def test_an_edited_file_keeps_its_mode_and_is_replaced_in_one_step(project: Project) -> None:
    given(project, "old\n")
    file = project.root / "a.txt"
    file.chmod(0o755)
    with file.open("rb") as before:
        edit(project, "old", "new")
        assert before.read() == b"old\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
    assert project.read("a.txt") == "new\n"
    file.chmod(0o555)
    assert refused(project, "new", "newer")["code"] == "file_write_failed"
    names = sorted(one.name for one in project.root.iterdir())
    assert names == [".kaged", "a.txt"]


@whole("AT-EDIT-16")
def test_the_first_of_several_mistakes_is_the_one_that_is_told(project: Project) -> None:
    project.write("a.txt", "text\n")
    project.write("unread.png", PNG)
    same = {"old_string": "x", "new_string": "x"}
    other = {"old_string": "absent", "new_string": "x"}
    # Each call has every later mistake as well.
    assert project.fail("edit.text", path="nothing.txt", **same)["code"] == "no_change"
    assert project.fail("edit.text", path="nothing.txt", **other)["code"] == "file_not_found"
    assert project.fail("edit.text", path="unread.png", **other)["code"] == "invalid_params"
    assert refused(project, "absent", "x")["code"] == "file_not_read"
    project.call("file.read", path="a.txt")
    project.write("a.txt", "gone gone\n")
    assert refused(project, "text", "x")["code"] == "file_changed_since_read"
    assert refused(project, "gone", "x")["code"] == "file_changed_since_read"
    project.call("file.read", path="a.txt")
    assert refused(project, "text", "x")["code"] == "old_string_not_found"
    assert refused(project, "gone", "x")["code"] == "multiple_matches"


@whole("AT-EDIT-16")
def test_of_two_agents_who_edit_one_version_exactly_one_wins(
    daemon: Daemon, project: Project, agent: Callable[..., str]
) -> None:
    agents = ("primary", agent("other", "rw:."))
    gate = threading.Barrier(2)

    def act(number: int) -> str:
        params = {"path": "a.txt", "old_string": "seed", "new_string": f"seed {number}"}
        body = {"agent": agents[number], "tool": "edit.text", "params": params}
        gate.wait()
        got = daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)
        return "" if got.is_success else str(got.json()["error"]["code"])

    with ThreadPoolExecutor(2) as pool:
        for turn in range(10):
            project.write("a.txt", f"turn {turn}: seed\n")
            for one in agents:
                project.call("file.read", one, path="a.txt")
            codes = list(pool.map(act, range(2)))
            assert sorted(codes) == ["", "file_changed_since_read"], codes
            assert project.read("a.txt") == f"turn {turn}: seed {codes.index('')}\n"
