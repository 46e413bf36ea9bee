"""Files are changed whole, all of them or none, and keep what is theirs."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaged.base import KagedError
from kaged.workspace import PlannedWrite, ProjectPath, Workspace, staging
from kaged.workspace import batch as batch_module
from kaged.workspace.batch import FLUSHED_ONE_BY_ONE
from kaged.workspace.content import sha256_of
from kaged.workspace.directory_handles import MAX_OPEN_PLACES
from kaged.workspace.errors import (
    FileBusy,
    FileChangedSinceRead,
    FileExists,
    FileMissing,
    FileTooLarge,
    FileWriteFailed,
    PathProtected,
    PathRefused,
    ProjectRootInvalid,
    RestoreFailed,
    WrongKind,
)

RENAMES = pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "links-only"])


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "project"
    root.mkdir()
    return Workspace(root)


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return Path(workspace.root)


@pytest.fixture
def renames(exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the newer rename away, as file systems do that do not have it."""
    if not exchange:

        def unsupported(*arguments: object) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(staging, "rename_with", unsupported)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def tree(root: Path) -> dict[str, bytes | None]:
    """Return everything below a directory; what is no plain file has no content."""
    return {
        str(one.relative_to(root)): one.read_bytes() if stat.S_ISREG(one.lstat().st_mode) else None
        for one in sorted(root.rglob("*"))
    }


@RENAMES
def test_a_new_file_is_written_with_its_directories(
    workspace: Workspace, root: Path, renames: None
) -> None:
    written = workspace.write_bytes(workspace.resolve("a/b/c.txt"), b"new")
    assert (written.created, written.size, written.sha256) == (True, 3, sha256_of(b"new"))
    assert tree(root) == {"a": None, "a/b": None, "a/b/c.txt": b"new"}


@RENAMES
@pytest.mark.parametrize("mode", [0o755, 0o600, 0o644, 0o4755, 0o2644])
def test_permission_bits_stay_but_nothing_gets_its_owners_rights(
    workspace: Workspace, root: Path, mode: int, renames: None
) -> None:
    target = root / "run.sh"
    target.write_bytes(b"old")
    target.chmod(mode)
    written = workspace.write_bytes(
        workspace.resolve("run.sh"), b"new", expect_sha=sha256_of(b"old")
    )
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == mode & 0o777
    assert (written.created, written.before) == (False, b"old")
    assert tree(root) == {"run.sh": b"new"}


def test_owner_and_attributes_stay(workspace: Workspace, root: Path) -> None:
    target = root / "a"
    target.write_bytes(b"old")
    if os.geteuid() == 0:
        os.chown(target, 4711, 4712)
    try:
        os.setxattr(target, "user.note", b"mine")
    except OSError:
        pytest.skip("this file system has no attributes")
    workspace.write_bytes(workspace.resolve("a"), b"new")
    assert os.getxattr(target, "user.note") == b"mine"
    if os.geteuid() == 0:
        assert (target.stat().st_uid, target.stat().st_gid) == (4711, 4712)


def test_a_link_stays_and_its_target_is_replaced(workspace: Workspace, root: Path) -> None:
    (root / "real").write_bytes(b"old")
    (root / "link").symlink_to("real")
    workspace.write_bytes(workspace.resolve("link"), b"new")
    assert (root / "link").is_symlink()
    assert (root / "real").read_bytes() == b"new"


def test_another_name_of_the_same_file_keeps_the_old_content(
    workspace: Workspace, root: Path, tmp_path: Path
) -> None:
    """A hard link to a file outside must not be a way to change it."""
    (tmp_path / "outside").write_bytes(b"old")
    os.link(tmp_path / "outside", root / "inside")
    workspace.write_bytes(workspace.resolve("inside"), b"new")
    assert (tmp_path / "outside").read_bytes() == b"old"


@RENAMES
def test_creating_is_exclusive(workspace: Workspace, root: Path, renames: None) -> None:
    (root / "file").write_bytes(b"old")
    (root / "dir").mkdir()
    (root / "dangling").symlink_to("nowhere")
    for name in ("file", "dir"):
        with pytest.raises(FileExists):
            workspace.write_bytes(workspace.resolve(name), b"new", create_only=True)
    here = ProjectPath("./dangling", f"{root}/dangling", "dangling")
    with pytest.raises(FileExists):
        workspace.write_bytes(here, b"new", create_only=True)
    assert tree(root) == {"dangling": None, "dir": None, "file": b"old"}


@RENAMES
def test_a_file_made_in_the_last_moment_is_not_overwritten(
    workspace: Workspace, root: Path, renames: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = batch_module.put

    def put(directory: int, item: staging.Staged) -> None:
        (root / "a").write_bytes(b"somebody else")
        real(directory, item)

    monkeypatch.setattr(batch_module, "put", put)
    with pytest.raises(FileExists):
        workspace.write_bytes(workspace.resolve("a"), b"new", create_only=True)
    assert tree(root) == {"a": b"somebody else"}


@RENAMES
@pytest.mark.parametrize("how", ["rewritten", "replaced", "removed", "directory"])
def test_a_change_in_the_last_moment_is_noticed_and_kept(
    workspace: Workspace,
    root: Path,
    renames: None,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the comparison and the swap there is no gap: the swap itself is undone."""
    target = root / "a"
    target.write_bytes(b"old")
    real = batch_module.put

    def put(directory: int, item: staging.Staged) -> None:
        if how == "rewritten":
            target.write_bytes(b"somebody else")
        elif how == "replaced":
            (root / "b").write_bytes(b"ald")
            (root / "b").rename(target)
        else:
            target.unlink()
            if how == "directory":
                target.mkdir()
        real(directory, item)

    monkeypatch.setattr(batch_module, "put", put)
    with pytest.raises((FileChangedSinceRead, FileWriteFailed)):
        workspace.write_bytes(workspace.resolve("a"), b"new", expect_sha=sha256_of(b"old"))
    expected = {"rewritten": b"somebody else", "replaced": b"ald", "directory": None}
    assert tree(root) == ({} if how == "removed" else {"a": expected[how]})


def test_the_expected_content_must_be_there(workspace: Workspace, root: Path) -> None:
    path = workspace.resolve("a")
    with pytest.raises(FileMissing):
        workspace.write_bytes(path, b"new", expect_sha=sha256_of(b"old"))
    (root / "a").write_bytes(b"other")
    with pytest.raises(FileChangedSinceRead):
        workspace.write_bytes(path, b"new", expect_sha=sha256_of(b"old"))
    assert tree(root) == {"a": b"other"}


def test_what_is_no_file_is_not_replaced(workspace: Workspace, root: Path) -> None:
    (root / "dir").mkdir()
    (root / "file").write_bytes(b"x")
    os.mkfifo(root / "fifo")
    for text, word in (
        ("dir", "directory"),
        ("fifo", "FIFO"),
        ("file/below", "below"),
        ("file/a/b/c", "below"),
        (".", "directory"),
    ):
        with pytest.raises(WrongKind, match=word):
            workspace.write_bytes(workspace.resolve(text), b"new")
    assert tree(root) == {"dir": None, "fifo": None, "file": b"x"}


def test_a_read_only_file_is_respected(workspace: Workspace, root: Path) -> None:
    (root / "a").write_bytes(b"old")
    (root / "a").chmod(0o444)
    with pytest.raises(FileWriteFailed, match="read-only"):
        workspace.write_bytes(workspace.resolve("a"), b"new")
    assert tree(root) == {"a": b"old"}


@pytest.mark.parametrize("swapped", ["parent", "ancestor", "file"])
def test_a_link_swapped_in_after_the_check_leads_nowhere(
    workspace: Workspace, root: Path, tmp_path: Path, swapped: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (root / "dir" / "deep").mkdir(parents=True)
    path = workspace.resolve("dir/deep/new.txt")
    if swapped == "file":
        (root / "dir" / "deep" / "new.txt").symlink_to(outside / "target")
    elif swapped == "parent":
        (root / "dir" / "deep").rmdir()
        (root / "dir" / "deep").symlink_to(outside)
    else:
        (root / "dir").rename(root / "moved")
        (root / "dir").symlink_to(outside)
    for create_only in (False, True):
        with pytest.raises((PathRefused, WrongKind, FileExists)):
            workspace.write_bytes(path, b"new", create_only=create_only)
    assert tree(outside) == {"deep": None}


def test_a_directory_swapped_between_the_two_phases_is_noticed(
    workspace: Workspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With very many directories the descriptors are given back and asked for again."""
    monkeypatch.setattr("kaged.workspace.directory_handles.MAX_OPEN_PLACES", 0)
    (root / "dir").mkdir()
    (root / "dir" / "a").write_bytes(b"old")

    def plans() -> Iterator[PlannedWrite]:
        yield PlannedWrite(workspace.resolve("dir/a"), b"new", sha256_of(b"old"))
        (root / "dir").rename(root / "moved")
        (root / "dir").mkdir()
        (root / "dir" / "a").write_bytes(b"trap")

    with pytest.raises(PathRefused, match="replaced just now"):
        workspace.write_all(plans())
    assert (root / "dir" / "a").read_bytes() == b"trap"
    assert (root / "moved" / "a").read_bytes() == b"old"


# -- several files -------------------------------------------------------------------------------


def mixed_plans(workspace: Workspace) -> list[PlannedWrite]:
    return [
        PlannedWrite(workspace.resolve("one"), b"1 new", sha256_of(b"1")),
        PlannedWrite(workspace.resolve("made/deep/two"), b"2 new", create_only=True),
        PlannedWrite(workspace.resolve("three"), None, sha256_of(b"3")),
        PlannedWrite(workspace.resolve("four"), b"4 new"),
    ]


def fill(root: Path) -> dict[str, bytes | None]:
    for name, content in (("one", b"1"), ("three", b"3"), ("four", b"4"), ("last", b"5")):
        (root / name).write_bytes(content)
    return tree(root)


@RENAMES
def test_several_files_change_together(workspace: Workspace, root: Path, renames: None) -> None:
    fill(root)
    written = workspace.write_all(mixed_plans(workspace))
    assert [(one.created, one.sha256 is None) for one in written] == [
        (False, False),
        (True, False),
        (False, True),
        (False, False),
    ]
    assert tree(root) == {
        "four": b"4 new",
        "last": b"5",
        "made": None,
        "made/deep": None,
        "made/deep/two": b"2 new",
        "one": b"1 new",
    }


@RENAMES
@pytest.mark.parametrize("failing", range(5))
@pytest.mark.parametrize("phase", ["stage", "put"])
def test_a_failure_anywhere_leaves_everything_as_it_was(
    workspace: Workspace,
    root: Path,
    renames: None,
    failing: int,
    phase: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fill(root)
    plans = [*mixed_plans(workspace), PlannedWrite(workspace.resolve("last"), b"5 new")]
    real = getattr(batch_module, phase)
    calls = iter(range(100))

    def fails(*arguments: object, **named: object) -> object:
        if next(calls) == min(failing, 3 if phase == "stage" else 4):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(batch_module, phase, fails)
    with pytest.raises(FileWriteFailed, match="No space left"):
        workspace.write_all(plans)
    assert tree(root) == before


def test_an_error_of_the_caller_in_the_middle_undoes_everything(
    workspace: Workspace, root: Path
) -> None:
    before = fill(root)

    def plans() -> Iterator[PlannedWrite]:
        yield from mixed_plans(workspace)
        raise RuntimeError("the caller changed its mind")

    with pytest.raises(RuntimeError, match="mind"):
        workspace.write_all(plans())
    assert tree(root) == before


def test_what_cannot_be_put_back_is_named(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root)
    real = batch_module.put

    def put(directory: int, item: staging.Staged) -> None:
        if item.name == "last":
            raise OSError(errno.EIO, "Input/output error")
        real(directory, item)

    def take_back(directory: int, item: staging.Staged) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(batch_module, "put", put)
    monkeypatch.setattr(batch_module, "take_back", take_back)
    plans = [
        PlannedWrite(workspace.resolve("one"), b"1 new", sha256_of(b"1")),
        PlannedWrite(workspace.resolve("last"), b"5 new"),
    ]
    with pytest.raises(RestoreFailed) as caught:
        workspace.write_all(plans)
    left = caught.value.data["left"]
    assert isinstance(left, list)
    assert isinstance(left[0], dict)
    assert left[0]["path"] == "./one"
    kept = left[0]["kept_as"]
    assert isinstance(kept, str)
    assert (root / kept).read_bytes() == b"1", "the old content is still there, under that name"


def test_a_thousand_files_in_as_many_directories_need_few_descriptors(
    workspace: Workspace, root: Path
) -> None:
    names = [f"d{number}/f" for number in range(MAX_OPEN_PLACES * 4)]
    assert len(names) > FLUSHED_ONE_BY_ONE
    opened: list[int] = []

    def plans() -> Iterator[PlannedWrite]:
        for name in names:
            opened.append(descriptors())
            yield PlannedWrite(workspace.resolve(name), b"x" * 10)

    before = descriptors()
    written = workspace.write_all(plans())
    assert len(written) == len(names)
    assert max(opened) <= before + MAX_OPEN_PLACES + 8
    assert descriptors() == before
    assert {(root / name).read_bytes() for name in names} == {b"x" * 10}


def test_old_contents_are_kept_for_undo_up_to_a_limit(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "KEPT_BEFORE_BYTES", 15)
    for name in ("a", "b"):
        (root / name).write_bytes(b"0123456789")
    sha = sha256_of(b"0123456789")
    small = workspace.write_all([PlannedWrite(workspace.resolve("a"), b"x", sha)])
    assert small[0].before == b"0123456789"
    (root / "a").write_bytes(b"0123456789")
    large = workspace.write_all(
        [PlannedWrite(workspace.resolve(name), b"x", sha) for name in ("a", "b")]
    )
    assert [one.before for one in large] == [None, None]
    assert [one.before_sha for one in large] == [sha, sha]


def test_a_leftover_of_a_killed_process_is_no_obstacle(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_numbers", iter([1, 1, 2, 3, 4]))
    (root / f"{staging.TEMP_PREFIX}{os.getpid()}-1").write_bytes(b"half")
    workspace.write_bytes(workspace.resolve("a"), b"new")
    assert (root / "a").read_bytes() == b"new"


def test_reading_is_bounded(workspace: Workspace, root: Path) -> None:
    (root / "a").write_bytes(b"0123456789")
    assert workspace.read_bytes(workspace.resolve("a"), 10).data == b"0123456789"
    with pytest.raises(FileTooLarge):
        workspace.read_bytes(workspace.resolve("a"), 9)
    with pytest.raises(WrongKind, match="directory"):
        workspace.read_bytes(workspace.resolve("."))


_STATES = st.sampled_from([None, b"", b"old", b"other"])


@given(
    now=st.lists(_STATES, min_size=1, max_size=4),
    plans=st.lists(
        st.tuples(_STATES, st.sampled_from([None, b"old", b"other"]), st.booleans()),
        min_size=1,
        max_size=4,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_planned_all_of_it_happens_or_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    now: list[bytes | None],
    plans: list[tuple[bytes | None, bytes | None, bool]],
) -> None:
    root = tmp_path_factory.mktemp("all")
    workspace = Workspace(root)
    for number, content in enumerate(now):
        if content is not None:
            (root / f"f{number}").write_bytes(content)
    before = tree(root)
    planned = [
        PlannedWrite(
            workspace.resolve(f"f{number}"),
            data,
            None if expected is None else sha256_of(expected),
            create_only=expected is None and create,
        )
        for number, (data, expected, create) in enumerate(plans)
    ]
    try:
        workspace.write_all(planned)
    except KagedError:
        assert tree(root) == before
        return
    expected_after = dict(before)
    for number, (data, _, _) in enumerate(plans):
        expected_after.pop(f"f{number}", None)
        if data is not None:
            expected_after[f"f{number}"] = data
    assert tree(root) == dict(sorted(expected_after.items()))


# -- when the system is in the way ---------------------------------------------------------------


def test_everything_works_on_a_kernel_without_openat2(
    workspace: Workspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> bool:
        return False

    monkeypatch.setattr("kaged.workspace.syscalls.has_openat2", missing)
    path = workspace.resolve("a/b")
    workspace.write_bytes(path, b"old")
    assert workspace.read_bytes(path).data == b"old"
    workspace.write_bytes(path, b"new", expect_sha=sha256_of(b"old"))
    (root / "a").rename(root / "c")
    (root / "a").symlink_to(tmp_path)
    with pytest.raises(PathRefused):
        workspace.write_bytes(path, b"trap")
    with pytest.raises(PathRefused):
        workspace.read_bytes(path)
    assert not (tmp_path / "b").exists()


def test_a_file_that_grows_or_shrinks_while_it_is_read_is_read_to_its_end(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = root / "a"
    real = os.read

    for size, limit, expected in ((20, 100, b"y" * 20), (3, 100, b"y" * 3), (20, 15, None)):
        target.write_bytes(b"x" * 10)

        def read(handle: int, count: int, size: int = size) -> bytes:
            if target.read_bytes()[:1] == b"x":
                with target.open("r+b") as file:
                    file.write(b"y" * size)
                    file.truncate(size)
            return real(handle, count)

        with monkeypatch.context() as changing:
            changing.setattr("kaged.workspace.content.os.read", read)
            if expected is None:
                with pytest.raises(FileTooLarge):
                    workspace.read_bytes(workspace.resolve("a"), limit)
            else:
                assert workspace.read_bytes(workspace.resolve("a"), limit).data == expected


def test_a_file_removed_in_the_last_moment_is_not_removed_twice(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = root / "a"
    real = batch_module.put
    for change in ("gone", "other"):
        target.write_bytes(b"old")

        def put(directory: int, item: staging.Staged, change: str = change) -> None:
            target.unlink()
            if change == "other":
                target.write_bytes(b"somebody else")
            real(directory, item)

        plan = PlannedWrite(workspace.resolve("a"), None, sha256_of(b"old"))
        with monkeypatch.context() as changing:
            changing.setattr(batch_module, "put", put)
            with pytest.raises(FileChangedSinceRead):
                workspace.write_all([plan])
    assert tree(root) == {"a": b"somebody else"}


def test_directories_that_others_use_meanwhile_are_not_taken_away(
    workspace: Workspace, root: Path
) -> None:
    def plans() -> Iterator[PlannedWrite]:
        yield PlannedWrite(workspace.resolve("new/deep/a"), b"x")
        (root / "new" / "b").write_bytes(b"somebody else")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        workspace.write_all(plans())
    assert tree(root) == {"new": None, "new/b": b"somebody else"}


def test_a_directory_that_is_a_file_by_now_is_said(workspace: Workspace, root: Path) -> None:
    path = workspace.resolve("dir/a")
    (root / "dir").write_bytes(b"x")
    with pytest.raises(WrongKind, match="below"):
        workspace.write_bytes(path, b"new")


def test_an_error_of_the_system_is_told_without_the_place(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*arguments: object, **named: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(root / "a"))

    monkeypatch.setattr("kaged.workspace.directory_handles.os.mkdir", denied)
    with pytest.raises(FileWriteFailed, match="Permission denied") as caught:
        workspace.write_bytes(workspace.resolve("dir/a"), b"x")
    assert str(root) not in str(caught.value)
    assert tree(root) == {}


def test_a_project_that_is_gone_is_not_made_anew(workspace: Workspace, root: Path) -> None:
    root.rmdir()
    for text in ("a", "deep/er/a"):
        with pytest.raises(ProjectRootInvalid, match="no longer exists"):
            workspace.write_bytes(workspace.resolve(text), b"x")
    assert not root.exists()


def test_a_file_that_keeps_its_place_stays_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something may be mounted over it: the text changes and the file does not."""
    monkeypatch.setattr(staging, "LOCK_PAUSE_S", 0.0)
    root = tmp_path / "kept"
    (root / ".git").mkdir(parents=True)
    config, other = root / ".git/config", root / "b.txt"
    config.write_text("[user]\n\tname = a\n\temail = e\n", encoding="utf-8")
    other.write_text("old\n", encoding="utf-8")
    config.chmod(0o640)
    workspace = Workspace(str(root))
    first, second = workspace.resolve(".git/config"), workspace.resolve("b.txt")
    before = config.stat()
    for text in ("[user]\n\tname = longer\n", "", "[user]\n\tname = a\n\temail = e\n"):
        workspace.write_bytes(first, text.encode())
        assert config.read_text("utf-8") == text
        assert (config.stat().st_ino, config.stat().st_mode) == (before.st_ino, before.st_mode)
    # One that fails puts the text back into the same file.
    old = config.read_text("utf-8")
    plans = [PlannedWrite(first, b"[user]\n"), PlannedWrite(second, b"x", expect_sha="0" * 64)]
    with pytest.raises(FileChangedSinceRead):
        workspace.write_all(plans)
    real = staging.put

    def fail(directory: int, item: staging.Staged) -> None:
        if item.name == "b.txt":
            raise OSError(errno.EIO, "no")
        real(directory, item)

    monkeypatch.setattr(batch_module, "put", fail)
    with pytest.raises(FileWriteFailed):
        workspace.write_all([PlannedWrite(first, b"[user]\n"), PlannedWrite(second, b"x")])
    monkeypatch.setattr(batch_module, "put", real)
    assert config.read_text("utf-8") == old
    assert config.stat().st_ino == before.st_ino
    # One that somebody has locked, as git does, is left alone.
    (root / ".git/config.lock").touch()
    with pytest.raises(FileBusy):
        workspace.write_bytes(first, b"[user]\n")
    assert config.read_text("utf-8") == old
    (root / ".git/config.lock").unlink()
    # It cannot be removed: what came in its place would not be looked at.
    with pytest.raises(PathProtected):
        workspace.write_all([PlannedWrite(first, None)])
    assert sorted(one.name for one in (root / ".git").iterdir()) == ["config"]
