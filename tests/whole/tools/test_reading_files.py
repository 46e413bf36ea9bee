"""`file.read` in a running daemon: lines, windows, folders, binary files, and what it refuses."""

from __future__ import annotations

import json
import os

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


@whole("AT-FILE-05", "AT-FILE-06")
@pytest.mark.parametrize("text", ["a\nb\nc", "a\nb\nc\n", "a\r\nb\r\nc\r\n"])
def test_lines_come_with_their_numbers_whatever_ends_them(project: Project, text: str) -> None:
    project.write("three.txt", text)
    assert project.call("file.read", path="three.txt") == {
        "path": "./three.txt",
        "type": "file",
        "content": "1: a\n2: b\n3: c",
        "total_lines": 3,
        "truncated": False,
    }


@whole("AT-FILE-07", "AT-FILE-08", "AT-FILE-09")
@pytest.mark.parametrize(
    ("lines", "window", "numbers", "truncated"),
    [
        (100, {"offset": 10, "limit": 11}, range(10, 21), True),
        (10, {"limit": 5}, range(1, 6), True),
        (10, {"offset": 6, "limit": 5}, range(6, 11), False),
        (10, {"offset": 999}, range(0), False),
        (0, {}, range(0), False),
    ],
)
def test_a_window_keeps_the_lines_own_numbers(
    project: Project, lines: int, window: dict[str, int], numbers: range, truncated: bool
) -> None:
    project.write("many.txt", "".join(f"line {n}\n" for n in range(1, lines + 1)))
    got = project.call("file.read", path="many.txt", **window)
    assert got["content"] == "\n".join(f"{n}: line {n}" for n in numbers)
    assert (got["total_lines"], got["truncated"]) == (lines, truncated)


@whole("AT-FILE-04")
def test_two_thousand_lines_come_unless_more_are_asked_for(project: Project) -> None:
    project.write("long.txt", "x\n" * 2500)
    assert len(project.call("file.read", path="long.txt")["content"].splitlines()) == 2000
    more = project.call("file.read", path="long.txt", limit=2400)
    assert len(more["content"].splitlines()) == 2400
    for bad in ({"offset": 0}, {"offset": -1}, {"limit": 0}, {"limit": -5}, {"offset": "two"}):
        assert project.fail("file.read", path="long.txt", **bad)["code"] == "invalid_params", bad


@whole("AT-FILE-01", "AT-FILE-03")
def test_every_way_of_writing_a_path_inside_the_project_is_the_same_path(project: Project) -> None:
    project.write("src/a.py", "1\n")
    inside = str(project.root / "src" / "a.py")
    for path in ("src/a.py", "./src/a.py", "src/../src/a.py", inside):
        assert project.call("file.read", path=path)["path"] == "./src/a.py"
    for path in ("/etc/passwd", "~/x", "a\0b", ""):
        assert project.fail("file.read", path=path)["code"] == "invalid_params", path


@whole("AT-FILE-02")
def test_no_tool_leaves_the_project(project: Project) -> None:
    (project.root / "out").symlink_to("/etc")
    for path in ("../../etc/hostname", "out/hostname"):
        for tool, more in (
            ("file.read", {}),
            ("file.write", {"content": "x"}),
            ("file.create", {"content": "x"}),
            ("edit.text", {"old_string": "a", "new_string": "b"}),
            ("search.grep", {"pattern": "a"}),
            ("search.glob", {"pattern": "*"}),
        ):
            refused = project.fail(tool, path=path, **more)
            assert refused["code"] == "invalid_params", (tool, path, refused)
            assert refused["data"]["detail"], (tool, path, refused)


@whole("AT-FILE-11", "AT-FILE-12")
def test_a_folder_is_a_list_of_names(project: Project) -> None:
    for name in ("c.txt", "a.txt", "b.txt", "d.txt"):
        project.write(f"box/{name}", "x")
    (project.root / "box" / "sub").mkdir()
    got = project.call("file.read", path="box")
    assert got["type"] == "directory"
    assert got["content"] == "a.txt\nb.txt\nc.txt\nd.txt\nsub/"
    part = project.call("file.read", path="box", limit=2)
    assert (part["content"], part["total_lines"], part["truncated"]) == ("a.txt\nb.txt", 5, True)


@whole("AT-FILE-13", "AT-FILE-14")
def test_what_is_binary_shows_in_the_content_and_not_in_the_name(project: Project) -> None:
    project.write("picture.txt", PNG)
    project.write("words.png", "only words\n")
    project.write("blob.txt", b"abc\0def")
    got = project.call("file.read", path="picture.txt")
    assert got == {
        "path": "./picture.txt",
        "type": "binary",
        "size": len(PNG),
        "mime": "image/png",
    }
    assert project.call("file.read", path="words.png")["content"] == "1: only words"
    assert project.call("file.read", path="blob.txt")["mime"] == "application/octet-stream"


@whole("AT-FILE-10", "AT-FILE-15")
def test_long_lines_are_cut_and_odd_bytes_are_shown(project: Project) -> None:
    project.write("long.txt", "y" * 5000 + "\n")
    got = project.call("file.read", path="long.txt")
    assert got["content"] == "1: " + "y" * 2000 + "[truncated]"
    assert got["truncated"] is False
    project.write("latin.txt", "caf\xe9\n".encode("latin-1"))
    assert (
        project.call("file.read", path="latin.txt")["content"] == "1: caf\N{REPLACEMENT CHARACTER}"
    )
    project.write("bom.txt", "\N{ZERO WIDTH NO-BREAK SPACE}first\n")
    assert project.call("file.read", path="bom.txt")["content"] == "1: first"


@whole("AT-FILE-16")
@pytest.mark.parametrize("path", ["./nope", "nope", "sub/../nope", "./nope/"])
def test_a_file_that_is_not_there_is_named_as_it_was_asked_for(project: Project, path: str) -> None:
    refused = project.fail("file.read", path=path)
    assert refused["code"] == "file_not_found"
    assert refused["data"]["detail"]["requested"] == path
    assert refused["data"]["detail"]["path"] == "./nope"


@whole("AT-FILE-18")
def test_a_pipe_is_refused_without_waiting_for_who_writes_into_it(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    assert project.fail("file.read", path="pipe")["code"] == "invalid_params"


@whole("AT-FILE-17", "AT-FILE-19")
def test_a_caged_agent_reads_what_its_cage_names_and_no_link_out_of_it(
    daemon: Daemon, project: Project
) -> None:
    cage = {"fs": [{"mode": "ro", "path": "./src"}]}
    project.describe(
        subagents={
            "reader": {
                "model": "default",
                "system_prompt": "You read.",
                "cage": cage,
                "tools": {"file.*": {"enabled": True}},
            }
        }
    )
    project.write("src/main.ts", "let a\n")
    project.write("data/secret", "s3cret\n")
    (project.root / "src" / "link").symlink_to("../data/secret")
    project.reload()
    reader = "primary.subagents.reader"
    assert project.call("file.read", reader, path="src/main.ts")["content"] == "1: let a"
    for path in ("data/secret", "src/link"):
        refused = project.fail("file.read", reader, path=path)
        assert refused["code"] == "capability_denied", refused
        assert "s3cret" not in str(refused)


@whole("AT-FILE-22")
def test_what_an_agent_read_counts_in_its_session_and_not_in_the_next(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.write("kept.txt", "one\n")
    change = {"path": "kept.txt", "content": "two\n"}
    model.play("ostrich-reads", call("file.read", path="kept.txt"), say("Read."))
    model.play("ostrich-writes", call("file.write", **change), say("Tried."))
    first = daemon.cli("run", "--json", "ostrich-reads", cwd=project.root)
    daemon.cli("run", "ostrich-writes", cwd=project.root)
    assert project.read("kept.txt") == "one\n"
    assert "file_not_read" in str(model.asked("ostrich-writes")[-1]["messages"][-1])
    session = json.loads(first.out.splitlines()[-1])["session_id"]
    model.play("ostrich-again", call("file.write", **change), say("Tried."))
    daemon.cli("run", "--session", session, "ostrich-again", cwd=project.root)
    assert project.read("kept.txt") == "two\n"
