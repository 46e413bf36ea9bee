"""`file.write` and `file.create` through dispatch: read first, all at once, and on record."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from fakes.tool_lab import ToolLab, cage
from kaged.base import JsonValue, ManualClock
from kaged.toolbox.files import file_tools
from kaged.tools import ToolError
from kaged.workspace import ChangeKind, FileChange, PlannedWrite, Workspace, Written
from requirements import requirement

CODER = "primary.subagents.coder"


@pytest.fixture
def lab(tmp_path: Path) -> ToolLab:
    return ToolLab(tmp_path, file_tools())


def second(lab: ToolLab, caller: str = CODER, session_id: str = "ses_1") -> ToolLab:
    """Return another agent on the same project."""
    return ToolLab(
        lab.root, file_tools(), caller=caller, workspace=lab.workspace, session_id=session_id
    )


@requirement("AT-FILE-23")
async def test_a_write_says_what_it_did(lab: ToolLab) -> None:
    assert await lab.call("file.write", path="a", content="é") == {
        "path": "./a",
        "bytes_written": 2,
        "created": True,
    }
    assert await lab.call("file.write", path="./a", content="new") == {
        "path": "./a",
        "bytes_written": 3,
        "created": False,
    }
    assert (lab.root / "a").read_bytes() == b"new"
    wrong: list[JsonValue] = [{"path": "a"}, {"content": "x"}, {"path": "a", "content": 5}, []]
    for missing in wrong:
        assert (await lab.refusal_with("file.write", missing)).code == "invalid_params"


@requirement("AT-FILE-24")
async def test_missing_directories_are_made(lab: ToolLab) -> None:
    await lab.call("file.write", path="./a/b/c/new.ts", content="x")
    assert (lab.root / "a" / "b" / "c" / "new.ts").read_bytes() == b"x"


@requirement("AT-FILE-25")
@pytest.mark.parametrize(
    "content", ["a\r\nb\r\n", "no newline", "", "\ufeffbom\n", "a\rb\n\n", "\0"]
)
async def test_the_content_is_taken_as_it_is(lab: ToolLab, content: str) -> None:
    (lab.root / "old").write_bytes(b"\xef\xbb\xbflonger than the new one\n" * 10)
    await lab.call("file.read", path="old")
    for path in ("old", "new"):
        await lab.call("file.write", path=path, content=content)
        assert (lab.root / path).read_bytes() == content.encode()


@requirement("AT-FILE-26")
async def test_what_was_not_read_is_not_overwritten(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"old")
    error = await lab.refusal("file.write", path="a", content="new")
    assert error.code == "file_not_read"
    assert error.as_json()["message"] == "Read the file before overwriting it."
    assert (lab.root / "a").read_bytes() == b"old"


@requirement("AT-FILE-27")
async def test_a_new_file_needs_no_reading(lab: ToolLab) -> None:
    assert (await lab.call("file.write", path="fresh", content="x"))["created"] is True


@requirement("AT-FILE-28")
async def test_what_changed_since_is_not_overwritten(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"old")
    await lab.call("file.read", path="a")
    (lab.root / "a").write_bytes(b"by hand")
    error = await lab.refusal("file.write", path="a", content="new")
    assert error.code == "file_changed_since_read"
    assert (lab.root / "a").read_bytes() == b"by hand"
    await lab.call("file.read", path="a")
    await lab.call("file.write", path="a", content="new")
    (lab.root / "a").write_bytes(b"again by hand")
    error = await lab.refusal("file.write", path="a", content="newer")
    assert error.code == "file_changed_since_read", "also after a write of its own"
    assert (lab.root / "a").read_bytes() == b"again by hand"


async def test_a_file_that_was_only_touched_has_not_changed(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"old")
    await lab.call("file.read", path="a")
    os.utime(lab.root / "a", ns=(1, 1))
    await lab.call("file.write", path="a", content="new")


@requirement("AT-FILE-21")
async def test_another_agents_read_does_not_count(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"old")
    coder = second(lab)
    await lab.call("file.read", path="a")
    assert (await coder.refusal("file.write", path="a", content="x")).code == "file_not_read"
    await coder.call("file.read", path="a")
    await coder.call("file.write", path="a", content="x")


@requirement("AT-FILE-22")
async def test_reads_count_across_runs_and_not_across_sessions(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"old")
    await lab.call_with("file.read", {"path": "a"}, run_id="run_1")
    await lab.call_with("file.write", {"path": "a", "content": "1"}, run_id="run_2")
    error = await lab.refusal_with("file.write", {"path": "a", "content": "2"}, session_id="ses_2")
    assert error.code == "file_not_read"
    await lab.call_with("file.read", {"path": "a"}, session_id="ses_2")
    await lab.call_with("file.write", {"path": "a", "content": "2"}, session_id="ses_2")


@requirement("AT-FILE-30")
async def test_a_write_keeps_the_mode_and_leaves_nothing_else(lab: ToolLab) -> None:
    target = lab.root / "run.sh"
    target.write_bytes(b"old")
    target.chmod(0o755)
    inode = target.stat().st_ino
    await lab.call("file.read", path="run.sh")
    held = target.open("rb")
    await lab.call("file.write", path="run.sh", content="new")
    assert target.stat().st_mode & 0o777 == 0o755
    assert target.stat().st_ino != inode, "another file took the name, in one step"
    assert held.read() == b"old", "whoever had it open has the whole old content"
    held.close()
    assert sorted(one.name for one in lab.root.iterdir()) == ["run.sh"]


@requirement("AT-FILE-31")
async def test_what_is_no_file_cannot_be_written(lab: ToolLab) -> None:
    (lab.root / "src").mkdir()
    (lab.root / "a.txt").write_bytes(b"x")
    os.mkfifo(lab.root / "fifo")
    for path in ("./src", "./a.txt/b", "./a.txt/b/c", ".", "fifo"):
        error = await lab.refusal("file.write", path=path, content="x")
        assert error.code == "invalid_params", path
    assert (lab.root / "a.txt").read_bytes() == b"x"


@requirement("AT-FILE-32")
async def test_an_agent_knows_what_it_wrote(lab: ToolLab) -> None:
    await lab.call("file.create", path="a", content="one")
    await lab.call("edit.text", path="a", old_string="one", new_string="two")
    await lab.call("file.write", path="a", content="three")
    await lab.call("edit.text", path="a", old_string="three", new_string="four")
    assert (lab.root / "a").read_bytes() == b"four"


@requirement("AT-FILE-33")
async def test_a_create_says_what_it_did(lab: ToolLab) -> None:
    assert await lab.call("file.create", path="a.txt", content="hé\n") == {
        "path": "./a.txt",
        "bytes_written": 4,
        "created": True,
    }
    assert (lab.root / "a.txt").read_bytes() == "hé\n".encode()
    wrong: list[JsonValue] = [{"path": "b"}, {"content": "x"}]
    for missing in wrong:
        assert (await lab.refusal_with("file.create", missing)).code == "invalid_params"


@requirement("AT-FILE-34")
async def test_nothing_that_exists_is_created(lab: ToolLab) -> None:
    (lab.root / "file").write_bytes(b"old")
    (lab.root / "dir").mkdir()
    (lab.root / "dangling").symlink_to("nowhere")
    (lab.root / "link").symlink_to("file")
    for path in ("file", "dir", "dangling", "link"):
        error = await lab.refusal("file.create", path=path, content="new")
        assert error.code == "file_exists", path
        assert "file.write" in str(error)
    assert (lab.root / "file").read_bytes() == b"old"
    assert not (lab.root / "nowhere").exists()
    # Two agents with locks of their own, so that only the disk decides.
    other = ToolLab(lab.root, file_tools(), caller=CODER, workspace=Workspace(lab.root))
    for number in range(20):
        path = f"race{number}"
        outcomes = await asyncio.gather(
            lab.call("file.create", path=path, content="1"),
            other.call("file.create", path=path, content="2"),
            return_exceptions=True,
        )
        codes = sorted(getattr(one, "code", "made") for one in outcomes)
        assert codes == ["file_exists", "made"]


@requirement("AT-FILE-35")
async def test_a_create_makes_directories_and_needs_the_right_to(lab: ToolLab) -> None:
    await lab.call("file.create", path="./x/y/z.ts", content="x")
    assert (lab.root / "x" / "y" / "z.ts").read_bytes() == b"x"
    caged = ToolLab(lab.root, file_tools(), cage("ro ./x", root=lab.root), CODER)
    error = await caged.refusal("file.create", path="./x/y/new.ts", content="x")
    assert (error.code, error.detail) == ("capability_denied", "rw:fs:./x/y/new.ts")
    assert not (lab.root / "x" / "y" / "new.ts").exists()


@requirement("AT-FILE-36")
async def test_a_linked_directory_is_no_way_out_for_a_new_file(lab: ToolLab) -> None:
    (lab.root / "src").mkdir()
    (lab.root / "data").mkdir()
    (lab.root / "src" / "out").symlink_to("../data")
    (lab.root / "src" / "far").symlink_to("/tmp")
    caged = ToolLab(lab.root, file_tools(), cage("rw ./src", root=lab.root), CODER)
    for tool in ("file.create", "file.write"):
        for path in ("./src/out/new", "./src/out/deep/er/new"):
            error = await caged.refusal(tool, path=path, content="x")
            assert error.code == "capability_denied"
        for who in (caged, lab):
            error = await who.refusal(tool, path="./src/far/kaged-never", content="x")
            assert error.code == "invalid_params"
    assert list((lab.root / "data").iterdir()) == []


@requirement("AT-FILE-37")
async def test_every_write_goes_on_record_and_to_the_listeners(lab: ToolLab) -> None:
    heard: list[FileChange] = []
    lab.workspace.changes.subscribe(heard.append)
    await lab.call("file.create", path="a", content="1")
    await lab.call("file.write", path="a", content="22")
    await lab.call("file.write", path="d/b", content="333")
    events = [
        (data["path"], data["bytes"], data["caller"]) for data in lab.audit.of("file.written")
    ]
    assert events == [("./a", 1, "primary"), ("./a", 2, "primary"), ("./d/b", 3, "primary")]
    assert [(one.kind, one.path.relative, one.content) for one in heard] == [
        (ChangeKind.CREATED, "./a", b"1"),
        (ChangeKind.CHANGED, "./a", b"22"),
        (ChangeKind.CREATED, "./d/b", b"333"),
    ]
    await lab.refusal("file.create", path="a", content="1")
    await lab.refusal("file.write", path="../x", content="1")
    await lab.refusal("file.write", path="d", content="1")
    assert len(lab.audit.of("file.written")) == 3, "what failed did not happen"
    assert len(heard) == 3


@requirement("AT-FILE-38")
async def test_of_two_writers_of_one_version_one_wins(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"version 1")
    coder = second(lab)
    await lab.call("file.read", path="a")
    await coder.call("file.read", path="a")
    outcomes = await asyncio.gather(
        lab.call("file.write", path="a", content="by primary"),
        coder.call("file.write", path="a", content="by coder"),
        return_exceptions=True,
    )
    codes = sorted(getattr(one, "code", "written") for one in outcomes)
    assert codes == ["file_changed_since_read", "written"]
    # The order of the checks: the kind of the target comes before what was read of it.
    (lab.root / "dir").mkdir()
    assert (await coder.refusal("file.write", path="dir", content="x")).code == "invalid_params"
    fresh = second(lab, "primary.subagents.fresh")
    assert (await fresh.refusal("file.write", path="a", content="x")).code == "file_not_read"
    # A file that was read and is gone counts as new.
    (lab.root / "a").unlink()
    assert (await lab.call("file.write", path="a", content="again"))["created"] is True


async def test_locks_are_held_while_a_file_is_written(lab: ToolLab) -> None:
    """A writer that waits for the lock sees what the other one wrote, never half of it."""
    path = lab.workspace.resolve("a")
    async with lab.workspace.locks.mutating([path]):
        task = asyncio.get_running_loop().create_task(lab.call("file.write", path="a", content="x"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        assert not (lab.root / "a").exists()
    await task
    assert (lab.root / "a").read_bytes() == b"x"


async def test_half_a_character_cannot_be_written(lab: ToolLab) -> None:
    error = await lab.refusal("file.write", path="a", content="x\ud800")
    assert error.code == "invalid_params"
    assert not (lab.root / "a").exists()


async def test_too_much_is_refused(lab: ToolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaged.toolbox.files.write.MAX_TEXT_BYTES", 3)
    error = await lab.refusal("file.write", path="a", content="1234")
    assert error.code == "invalid_params"


async def test_a_pasted_read_is_written_with_a_warning(lab: ToolLab) -> None:
    (lab.root / "a").write_bytes(b"x\n" * 3 + b"y" * 3000)
    shown = (await lab.call("file.read", path="a"))["content"]
    answer = await lab.call("file.write", path="a", content=shown)
    assert len(answer["warnings"]) == 2
    assert (lab.root / "a").read_bytes() == shown.encode(), "it is written all the same"
    harmless = await lab.call("file.write", path="b", content="10: ten\n20: twenty\n")
    assert "warnings" not in harmless


async def test_a_file_that_appears_while_it_is_made_is_not_lost(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lab.workspace.write_bytes

    def write_bytes(*arguments: object, **named: object) -> object:
        (lab.root / "a").write_bytes(b"somebody else")
        return real(*arguments, **named)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(lab.workspace, "write_bytes", write_bytes)
    error = await lab.refusal("file.write", path="a", content="mine")
    assert error.code == "file_not_read"
    assert (lab.root / "a").read_bytes() == b"somebody else"


# -- the cage ------------------------------------------------------------------------------------


@pytest.fixture
def caged(tmp_path: Path) -> ToolLab:
    for place in ("src", "data", "out", "src-secret"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "main.ts").write_bytes(b"one")
    return ToolLab(tmp_path, file_tools(), cage("ro ./src", "rw ./out", root=tmp_path), CODER)


@requirement("AT-FILE-19", "AT-PERM-17", "AT-PERM-19")
@pytest.mark.parametrize("relaxed", [False, True])
async def test_a_caged_reader_reads_what_its_entries_cover(tmp_path: Path, relaxed: bool) -> None:
    for place in ("src", "data", "out"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "main.ts").write_bytes(b"one")
    (tmp_path / "data" / "secrets.json").write_bytes(b"{}")
    policy = cage("ro ./src", "rw ./out", root=tmp_path, relaxed=relaxed)
    lab = ToolLab(tmp_path, file_tools(), policy, CODER)
    for path in ("./src/main.ts", "out/main.ts", "src"):
        await lab.call("file.read", path=path)
    for path in ("./data/secrets.json", "data/main.ts", "data", ".", "nowhere"):
        error = await lab.refusal("file.read", path=path)
        assert (error.code, error.number) == ("capability_denied", -32001)
        assert error.detail == f"ro:fs:{path}"
    uncaged = ToolLab(tmp_path, file_tools())
    for path in ("./data/secrets.json", "data", "."):
        await uncaged.call("file.read", path=path)


@requirement("AT-FILE-29", "AT-FAIL-08")
async def test_a_caged_writer_writes_where_it_may(caged: ToolLab) -> None:
    for path in ("out/main.ts", "src/main.ts"):
        await caged.call("file.read", path=path)
    refused = ("src/main.ts", "src/new.ts", "data/main.ts", "src-secret/x", "new.ts")
    for path in refused:
        error = await caged.refusal("file.write", path=path, content="two")
        assert (error.code, error.detail) == ("capability_denied", f"rw:fs:{path}")
    denied = caged.audit.of("tool.denied")
    assert [one["denied_capability"] for one in denied] == [f"rw:fs:{path}" for path in refused]
    assert {one["rule"] for one in denied} == {"tool.fs"}
    assert denied[0]["cage_summary"]["fs"] == ["ro:./src", "rw:./out"]
    await caged.call("file.write", path="out/main.ts", content="two")
    await caged.call("file.write", path="out/deep/new.ts", content="two")
    assert (caged.root / "src" / "main.ts").read_bytes() == b"one"
    assert not (caged.root / "src" / "new.ts").exists()
    uncaged = ToolLab(caged.root, file_tools())
    await uncaged.call("file.write", path="anywhere/at/all", content="x")


@requirement("AT-FILE-29")
async def test_the_narrower_of_two_entries_decides_also_as_a_pattern(caged: ToolLab) -> None:
    policy = cage("rw .", "ro ./src", "rw ./src/*/made", "ro ./out/*.ts", root=caged.root)
    lab = ToolLab(caged.root, file_tools(), policy, CODER)
    for path in ("new.ts", "src/a/made/new.ts", "out/new.txt"):
        await lab.call("file.write", path=path, content="two")
    for path in ("src/new.ts", "src/a/new.ts", "src/made/new.ts", "out/new.ts"):
        assert (await lab.refusal("file.write", path=path, content="x")).detail == f"rw:fs:{path}"
        assert not (caged.root / path).exists()
    summary = lab.audit.of("tool.denied")[0]["cage_summary"]
    assert summary["fs"][0] == "rw:./"


async def test_a_caged_agent_never_sees_where_the_project_is(caged: ToolLab) -> None:
    said = [
        str(await caged.call("file.read", path="src/main.ts")),
        str(await caged.call("file.read", path="src")),
        str(await caged.call("file.create", path="out/new", content="x")),
        str(await caged.call("edit.text", path="out/new", old_string="x", new_string="y")),
    ]
    (caged.root / "out" / "dir").mkdir()
    (caged.root / "out" / "away").symlink_to("/etc")
    os.mkfifo(caged.root / "out" / "fifo")
    for path in ("out/dir", "out/nope", "out/away", "out/fifo", "out/new/x", "out/main.ts", "data"):
        for tool, params in (
            ("file.read", {}),
            ("file.write", {"content": "x"}),
            ("file.create", {"content": "x"}),
            ("edit.text", {"old_string": "a", "new_string": "b"}),
        ):
            try:
                said.append(str(await caged.call_with(tool, {"path": path, **params})))
            except ToolError as error:
                said.append(str(error.as_json()))
    assert str(caged.root) not in "".join(said)


# -- busy files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "params"),
    [
        ("file.read", {}),
        ("file.write", {"content": "x"}),
        ("file.create", {"content": "x"}),
        ("edit.text", {"old_string": "a", "new_string": "b"}),
    ],
)
async def test_a_file_that_stays_busy_is_given_up_after_five_seconds(
    tmp_path: Path, clock: ManualClock, tool: str, params: dict[str, JsonValue]
) -> None:
    workspace = Workspace(tmp_path, clock=clock)
    lab = ToolLab(tmp_path, file_tools(), workspace=workspace, clock=clock)
    async with workspace.locks.mutating([workspace.resolve("a")]):
        task = asyncio.get_running_loop().create_task(
            lab.refusal_with(tool, {"path": "a", **params})
        )
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        clock.advance(5.1)
        async with asyncio.timeout(5):
            error = await task
    assert error.code == "file_busy"
    assert "./a" in error.message
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_write_is_whole_and_on_record(
    lab: ToolLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is cancelled while the disk is at work: the file is written, and the log says so."""
    started, go = threading.Event(), threading.Event()
    real = lab.workspace.write_all

    def slow(plans: list[PlannedWrite]) -> tuple[Written, ...]:
        started.set()
        go.wait(5)
        return real(plans)

    monkeypatch.setattr(lab.workspace, "write_all", slow)
    task = asyncio.get_running_loop().create_task(lab.call("file.write", path="a", content="x"))
    await asyncio.get_running_loop().run_in_executor(None, started.wait, 5)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done(), "the lock is held as long as the disk is at work"
    assert lab.workspace.locks.held() == 1
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (lab.root / "a").read_bytes() == b"x"
    assert lab.audit.of("file.written")[0]["path"] == "./a"
    assert lab.workspace.locks.held() == 0
    assert len(lab.workspace.journal.steps()) == 1
