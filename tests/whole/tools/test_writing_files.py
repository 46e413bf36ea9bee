"""`file.write` and `file.create` in a running daemon: what they put on the disk, what they refuse.

And the rule before every overwriting: who has not read the file as it is now, does not replace it.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

BROKEN_FILES = ".kaged-tmp-"


def race(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Let `count` clients act at the same moment."""
    gate = threading.Barrier(count)

    def one(index: int) -> Any:
        gate.wait()
        return act(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def attempt(project: Project, tool: str, agent: str, path: str, content: str) -> str:
    """Call a tool that may fail; returns the error's code, or nothing."""
    params = {"path": path, "content": content}
    body = {"agent": agent, "tool": tool, "params": params}
    got = project.daemon.client.post(f"/api/v1/projects/{project.id}/tools/call", json=body)
    return "" if got.is_success else str(got.json()["error"]["code"])


# -- what is written ---------------------------------------------------------------------------


@whole("AT-FILE-23", "AT-FILE-27")
def test_a_new_file_needs_no_reading_and_its_bytes_are_counted(project: Project) -> None:
    got = project.call("file.write", path="new.txt", content="\xe9")
    assert got == {"path": "./new.txt", "bytes_written": 2, "created": True}
    assert project.read("new.txt") == "\xe9"
    again = project.call("file.write", path="./new.txt", content="\xe9\xe9")
    assert again == {"path": "./new.txt", "bytes_written": 4, "created": False}
    for params in (
        {"path": "x"},
        {"content": "x"},
        {"path": "x", "content": 1},
        {"path": ["x"], "content": "x"},
        {"path": "x", "content": None},
    ):
        assert project.fail("file.write", **params)["code"] == "invalid_params", params
        assert project.fail("file.create", **params)["code"] == "invalid_params", params
    assert not (project.root / "x").exists()


@whole("AT-FILE-23")
def test_a_long_content_arrives_though_it_is_sent_after_its_head(
    daemon: Daemon, project: Project
) -> None:
    params = {"path": "long.txt", "content": "x" * 60_000}
    body = json.dumps({"agent": "primary", "tool": "file.write", "params": params}).encode()
    head = (
        f"POST /api/v1/projects/{project.id}/tools/call HTTP/1.1\r\nHost: kaged\r\n"
        "Content-Type: application/json\r\nExpect: 100-continue\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(daemon.get("/status")["socket"])
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert project.read("long.txt") == "x" * 60_000


@whole("AT-FILE-33")
def test_a_created_file_is_told_with_its_size(project: Project) -> None:
    got = project.call("file.create", path="sub/../made.txt", content="a\xe9b")
    assert got == {"path": "./made.txt", "bytes_written": 4, "created": True}
    assert project.read("made.txt") == "a\xe9b"


@whole("AT-FILE-24", "AT-FILE-35")
@pytest.mark.parametrize(
    ("tool", "path"), [("file.write", "./a/b/c/new.ts"), ("file.create", "./x/y/z.ts")]
)
def test_missing_folders_are_made(project: Project, tool: str, path: str) -> None:
    assert project.call(tool, path=path, content="1")["created"] is True
    assert project.read(path) == "1"
    assert (project.root / path).parent.is_dir()


@whole("AT-FILE-25")
@pytest.mark.parametrize("content", ["a\r\nb\r\nc", "", "a\rb\n\n", "no end", " x \n", "\ufeffa"])
@pytest.mark.parametrize("tool", ["file.write", "file.create", "over"])
def test_the_bytes_on_disk_are_the_bytes_that_were_given(
    project: Project, tool: str, content: str
) -> None:
    if tool == "over":
        project.write("exact.txt", "old words that are longer than all the new ones\r\n")
        project.call("file.read", path="exact.txt")
    project.call("file.write" if tool == "over" else tool, path="exact.txt", content=content)
    assert (project.root / "exact.txt").read_bytes() == content.encode()


@whole("AT-FILE-31")
def test_a_folder_is_not_overwritten_and_nothing_is_put_below_a_file(project: Project) -> None:
    project.write("src/kept.txt", "kept\n")
    project.write("a.txt", "kept\n")
    for path in ("./src", "./a.txt/b", "./a.txt/b/c", "./"):
        refused = project.fail("file.write", path=path, content="x")
        assert refused["code"] == "invalid_params", (path, refused)
    assert project.read("src/kept.txt") == project.read("a.txt") == "kept\n"


@whole("AT-FILE-30")
@pytest.mark.parametrize("mode", [0o755, 0o600, 0o664])
def test_permission_bits_survive_and_the_new_file_takes_the_name_in_one_step(
    project: Project, mode: int
) -> None:
    file = project.write("run.sh", "old\n")
    file.chmod(mode)
    project.call("file.read", path="run.sh")
    with file.open("rb") as before:
        project.call("file.write", path="run.sh", content="new\n")
        # Whoever had it open still has the whole old file: it was replaced, not written into.
        assert before.read() == b"old\n"
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert project.read("run.sh") == "new\n"
    assert [one.name for one in project.root.iterdir() if BROKEN_FILES in one.name] == []


@whole("AT-FILE-30")
def test_a_kill_during_a_write_leaves_the_old_file_or_the_new_one(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "killed"))
    texts = ["o" * 900_000, "n" * 900_000]
    file = project.write("big.txt", texts[0])
    project.call("file.read", path="big.txt", limit=1)

    def unfinished() -> list[Path]:
        return [one for one in project.root.iterdir() if BROKEN_FILES in one.name]

    with ThreadPoolExecutor(1) as pool:
        for turn in range(1, 50):
            content = texts[turn % 2]
            answer = pool.submit(attempt, project, "file.write", "primary", "big.txt", content)
            # The new content lies beside the old one, under another name, until it is complete.
            while not (caught := unfinished()) and not answer.done():
                pass
            if caught:
                break
        else:
            pytest.fail("never seen at work")
        daemon.kill()
        assert answer.exception() is not None or answer.result() == ""
    whole_texts = {text.encode() for text in texts}
    assert file.read_bytes() in whole_texts
    daemon.start()
    daemon.load(project)
    wait_for(lambda: not unfinished())
    assert file.read_bytes() in whole_texts


# -- read first --------------------------------------------------------------------------------


@whole("AT-FILE-26")
def test_what_was_not_read_is_not_overwritten(project: Project) -> None:
    project.write("kept.txt", "kept\n")
    refused = project.fail("file.write", path="kept.txt", content="lost\n")
    assert refused["code"] == "file_not_read"
    assert refused["message"] == "Read the file before overwriting it."
    assert project.read("kept.txt") == "kept\n"


@whole("AT-FILE-20", "AT-AMB-38")
def test_reading_one_line_or_a_binary_file_counts_and_listing_its_folder_does_not(
    project: Project,
) -> None:
    project.write("box/many.txt", "".join(f"{n}\n" for n in range(50)))
    project.write("box/blob.bin", b"\0\1\2")
    project.call("file.read", path="box")
    for path in ("box/many.txt", "box/blob.bin"):
        refused = project.fail("file.write", path=path, content="x")
        assert refused["code"] == "file_not_read", path
    project.call("file.read", path="box/many.txt", offset=7, limit=1)
    assert project.call("file.read", path="box/blob.bin")["type"] == "binary"
    for path in ("box/many.txt", "box/blob.bin"):
        assert project.call("file.write", path=path, content="x")["created"] is False


@whole("AT-FILE-20", "AT-FILE-28")
def test_a_change_outside_the_window_that_was_read_is_noticed(project: Project) -> None:
    lines = [f"{n}\n" for n in range(50)]
    project.write("many.txt", "".join(lines))
    project.call("file.read", path="many.txt", offset=7, limit=1)
    project.write("many.txt", "".join([*lines[:-1], "changed\n"]))
    refused = project.fail("file.write", path="many.txt", content="x")
    assert refused["code"] == "file_changed_since_read"


@whole("AT-FILE-21", "AT-AMB-38")
def test_another_agents_reading_is_not_ones_own(
    project: Project, agent: Callable[..., str]
) -> None:
    other = agent("other", "rw:.")
    project.write("shared.txt", "one\n")
    project.call("file.read", path="shared.txt")
    refused = project.fail("file.write", other, path="shared.txt", content="two\n")
    assert refused["code"] == "file_not_read"
    assert project.read("shared.txt") == "one\n"
    project.call("file.read", other, path="shared.txt")
    project.call("file.write", other, path="shared.txt", content="two\n")
    # And the writer's new content is none that the first agent has read.
    refused = project.fail("file.write", path="shared.txt", content="three\n")
    assert refused["code"] == "file_changed_since_read"


@whole("AT-FILE-28")
def test_what_was_changed_since_is_not_overwritten_until_it_is_read_again(
    project: Project,
) -> None:
    file = project.write("kept.txt", "one\n")
    project.call("file.read", path="kept.txt")
    before = file.stat()
    project.write("kept.txt", "two\n")  # as long as the old one, and with its time stamps
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused = project.fail("file.write", path="kept.txt", content="mine\n")
    assert refused["code"] == "file_changed_since_read"
    assert project.read("kept.txt") == "two\n"
    project.call("file.read", path="kept.txt")
    project.call("file.write", path="kept.txt", content="mine\n")
    project.write("kept.txt", "nine\n")  # changed after the agent's own write
    refused = project.fail("file.write", path="kept.txt", content="more\n")
    assert refused["code"] == "file_changed_since_read"
    assert project.read("kept.txt") == "nine\n"


@whole("AT-FILE-32")
@pytest.mark.parametrize("first", ["file.create", "file.write", "edit.text"])
def test_an_agent_knows_what_it_wrote_itself(project: Project, first: str) -> None:
    if first == "edit.text":
        project.write("own.txt", "zero\n")
        project.call("file.read", path="own.txt")
        project.call(first, path="own.txt", old_string="zero", new_string="one")
    else:
        project.call(first, path="own.txt", content="one\n")
    project.call("edit.text", path="own.txt", old_string="one", new_string="two")
    project.call("edit.text", path="own.txt", old_string="two", new_string="three")
    project.call("file.write", path="own.txt", content="four\n")
    assert project.read("own.txt") == "four\n"


@whole("AT-FILE-38")
def test_a_file_that_was_read_and_removed_counts_as_new(project: Project) -> None:
    file = project.write("gone.txt", "one\n")
    project.call("file.read", path="gone.txt")
    file.unlink()
    assert project.call("file.write", path="gone.txt", content="two\n")["created"] is True
    # The kind of the target is looked at before the reading: a folder is never `file_not_read`.
    (project.root / "folder").mkdir()
    assert project.fail("file.write", path="folder", content="x")["code"] == "invalid_params"


@whole("AT-FILE-38")
def test_of_two_agents_who_write_over_one_version_exactly_one_succeeds(
    project: Project, agent: Callable[..., str]
) -> None:
    agents = ("primary", agent("other", "rw:."))
    for turn in range(10):
        project.write("raced.txt", f"version {turn}\n")
        for one in agents:
            project.call("file.read", one, path="raced.txt")
        mine = [f"{one} in turn {turn}\n" for one in agents]
        codes = race(
            2,
            lambda n, mine=mine: attempt(project, "file.write", agents[n], "raced.txt", mine[n]),
        )
        assert sorted(codes) == ["", "file_changed_since_read"], codes
        assert project.read("raced.txt") == mine[codes.index("")]


# -- create ------------------------------------------------------------------------------------


@whole("AT-FILE-34")
def test_what_is_there_is_never_created_again(project: Project) -> None:
    project.write("there.txt", "kept\n")
    (project.root / "folder").mkdir()
    (project.root / "dangling").symlink_to("nowhere.txt")
    for path in ("there.txt", "folder", "dangling"):
        refused = project.fail("file.create", path=path, content="lost\n")
        assert refused["code"] == "file_exists", (path, refused)
        assert "file.write" in refused["data"]["fix"]
    assert project.read("there.txt") == "kept\n"
    assert not (project.root / "nowhere.txt").exists()
    assert (project.root / "dangling").is_symlink()


@whole("AT-FILE-34")
def test_of_many_who_create_one_file_at_once_exactly_one_succeeds(project: Project) -> None:
    for turn in range(5):
        path = f"deep/{turn}/raced.txt"
        codes = race(
            6,
            lambda n, path=path: attempt(project, "file.create", "primary", path, f"client {n}\n"),
        )
        assert sorted(codes) == ["", *["file_exists"] * 5], codes
        assert project.read(path) == f"client {codes.index('')}\n"


# -- cages -------------------------------------------------------------------------------------


@whole("AT-FILE-29", "AT-FILE-35")
def test_a_cage_lets_write_where_it_says_rw(project: Project, agent: Callable[..., str]) -> None:
    project.write("src/main.ts", "old\n")
    (project.root / "out").mkdir()
    caged = agent("caged", "ro:src", "rw:out")
    project.call("file.read", caged, path="src/main.ts")
    for path in ("src/main.ts", "src/new.ts", "elsewhere.ts", "src/x/y/z.ts"):
        for tool in ("file.write", "file.create"):
            refused = project.fail(tool, caged, path=path, content="x")
            assert refused["code"] == "capability_denied", (tool, path, refused)
            assert refused["data"]["detail"] == f"rw:fs:{path}"
    assert project.read("src/main.ts") == "old\n"
    assert not (project.root / "src" / "x").exists()
    assert project.call("file.write", caged, path="out/a.ts", content="x")["created"] is True
    assert project.call("file.create", caged, path="out/b/c.ts", content="x")["created"] is True
    free = agent("free", cage="disabled")
    assert project.call("file.write", free, path="any/where.ts", content="x")["created"] is True


@whole("AT-FILE-36")
def test_a_linked_folder_is_no_way_out_of_cage_or_project(
    project: Project, agent: Callable[..., str]
) -> None:
    for name in ("src", "data"):
        (project.root / name).mkdir()
    (project.root / "src" / "out").symlink_to("../data")
    (project.root / "src" / "far").symlink_to(project.root.parent)
    caged = agent("caged", "rw:src")
    for tool in ("file.create", "file.write"):
        for path in ("./src/out/new", "./src/out/deep/er/new"):
            refused = project.fail(tool, caged, path=path, content="x")
            assert refused["code"] == "capability_denied", (tool, path, refused)
        refused = project.fail(tool, caged, path="./src/far/new/x", content="x")
        assert refused["code"] == "invalid_params", refused
    assert list((project.root / "data").iterdir()) == []
    assert not (project.root.parent / "new").exists()


@whole("AT-AMB-22", "AT-AMB-23")
def test_a_grant_is_of_whole_names_and_the_nearest_one_decides(
    project: Project, agent: Callable[..., str]
) -> None:
    for name in ("src/a.ts", "src/vendor/a.ts", "src-secret/a.ts", "srcx", "src/vendor/own/a.ts"):
        project.write(name, "old\n")
    (project.root / "src" / "link").symlink_to("../src-secret/a.ts")
    caged = agent("caged", "rw:src", "ro:src/vendor", "rw:src/vendor/own")
    for path in ("./src-secret/a.ts", "./srcx", "./src/link", "./src-secret/missing.ts"):
        for tool, more in (("file.read", {}), ("file.write", {"content": "x"})):
            refused = project.fail(tool, caged, path=path, **more)
            mode = "ro" if tool == "file.read" else "rw"
            assert refused["code"] == "capability_denied", (tool, path)
            assert refused["data"]["detail"] == f"{mode}:fs:{path}"
    # Also where the path is not called `path`, and where it is not a path that is missing.
    for tool, params in (
        ("search.ast", {"pattern": "a", "lang": "typescript", "paths": ["src", "src-secret"]}),
        ("shell.bash", {"command": "true", "cwd": "src-secret"}),
        ("shell.bash", {"command": "true", "cwd": "src"}),
    ):
        assert project.fail(tool, caged, **params)["code"] == "capability_denied", tool
    for path, writable in (
        ("src/a.ts", True),
        ("src/vendor/a.ts", False),
        ("src/vendor/own/a.ts", True),
    ):
        project.call("file.read", caged, path=path)
        params = {"path": path, "content": "new\n"}
        if writable:
            project.call("file.write", caged, **params)
        else:
            assert project.fail("file.write", caged, **params)["code"] == "capability_denied"
        assert project.read(path) == ("new\n" if writable else "old\n")


# -- on record ---------------------------------------------------------------------------------


@whole("AT-FILE-37")
def test_every_write_and_create_is_on_record_once_and_refused_ones_are_not(
    daemon: Daemon, project: Project
) -> None:
    project.call("file.write", path="a.txt", content="\xe9")
    project.call("file.create", path="b.txt", content="four")
    project.fail("file.create", path="b.txt", content="x")

    def rows() -> list[dict[str, Any]]:
        found = daemon.audit("file.written", project_id=project.id)
        return [one["data"] for one in found]

    assert exactly(2, rows) == [
        {"path": "./a.txt", "bytes": 2, "caller": "primary", "tool_name": "file.write"},
        {"path": "./b.txt", "bytes": 4, "caller": "primary", "tool_name": "file.create"},
    ]


@whole("AT-FILE-32", "AT-FILE-37")
def test_a_model_creates_a_file_and_edits_it_without_reading_it(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    model.play(
        "walrus-creates",
        call("file.create", path="poem.txt", content="one fish\n"),
        call("edit.text", path="poem.txt", old_string="one", new_string="two"),
        say("Done."),
    )
    daemon.cli("run", "walrus-creates", cwd=project.root)
    assert project.read("poem.txt") == "two fish\n"
    rows = daemon.audit("file.written", "file.edited", project_id=project.id)
    assert [one["event"] for one in rows] == ["file.written", "file.edited"]
