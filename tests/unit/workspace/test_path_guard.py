"""From an agent's text to a path inside the project, or to a refusal that names the problem."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaged.workspace.errors import (
    FileMissing,
    FileUnreadable,
    PathRefused,
    ProjectRootInvalid,
    WrongKind,
)
from kaged.workspace.guard import PathGuard
from kaged.workspace.path import is_inside, parse_path, relative_form
from kaged.workspace.syscalls import open_place, walk_place
from kaged.workspace.text import printable, sendable
from requirements import requirement


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a\n", encoding="utf-8")
    (tmp_path / "outside.txt").write_text("secret\n", encoding="utf-8")
    (tmp_path / "project-secret").mkdir()
    return root


@pytest.fixture
def guard(root: Path) -> PathGuard:
    return PathGuard(root)


@pytest.mark.parametrize(
    "text",
    [
        "src/a.py",
        "./src/a.py",
        ".//src///a.py",
        "src/./a.py",
        "src/../src/a.py",
        "./src/deep/../a.py",
        "src/a.py/",
        "src/nope/../a.py",
    ],
)
def test_every_spelling_of_a_path_has_one_form(guard: PathGuard, text: str) -> None:
    path = guard.resolve(text)
    assert path.relative == "./src/a.py"
    assert path.resolved == f"{guard.root}/src/a.py"
    assert path.requested == text
    assert not path.link


@pytest.mark.parametrize("text", [".", "./", "src/..", "./."])
def test_the_root_itself_is_dot_slash(guard: PathGuard, text: str) -> None:
    assert guard.resolve(text).relative == "./"
    assert guard.resolve(text).resolved == guard.root


def test_an_absolute_path_counts_when_it_is_inside(guard: PathGuard, root: Path) -> None:
    assert guard.resolve(str(root / "src" / "a.py")).relative == "./src/a.py"
    assert guard.resolve(f"{root}/src/../src/a.py").relative == "./src/a.py"
    assert guard.resolve(str(root)).relative == "./"


@requirement("AT-CTX-04")
def test_a_project_opened_through_a_link_has_its_real_root(tmp_path: Path, root: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    (tmp_path / "up").symlink_to(tmp_path)
    guard = PathGuard(tmp_path / "up" / "alias")
    assert guard.root == os.path.realpath(root)
    assert guard.resolve("src/a.py").resolved == os.path.realpath(root / "src" / "a.py")
    assert guard.resolve(str(tmp_path / "alias" / "src" / "a.py")).relative == "./src/a.py"
    with pytest.raises(PathRefused):
        guard.resolve("../project/src/a.py")


def test_links_inside_are_followed_and_keep_the_name_they_were_asked_by(
    guard: PathGuard, root: Path
) -> None:
    (root / "link.py").symlink_to("src/a.py")
    (root / "dir").symlink_to("src/deep")
    path = guard.resolve("link.py")
    assert (path.relative, path.resolved) == ("./link.py", f"{guard.root}/src/a.py")
    assert path.link
    below = guard.resolve("dir/new.py")
    assert (below.relative, below.resolved) == ("./dir/new.py", f"{guard.root}/src/deep/new.py")
    assert not below.link


def test_up_from_a_link_is_where_the_disk_says(guard: PathGuard, root: Path) -> None:
    """By its letters `dir/../a.py` would be ./a.py; the link leads to src/deep."""
    (root / "dir").symlink_to("src/deep")
    assert guard.resolve("dir/../a.py").relative == "./src/a.py"


def test_a_dangling_link_is_where_it_leads(guard: PathGuard, root: Path) -> None:
    (root / "gone").symlink_to("src/later.py")
    path = guard.resolve("gone")
    assert path.resolved == f"{guard.root}/src/later.py"
    assert path.link


def test_a_loop_of_links_resolves_but_cannot_be_opened(guard: PathGuard, root: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    with pytest.raises(PathRefused):
        guard.open_read(guard.resolve("one"))


@pytest.mark.parametrize(
    "target", ["../outside.txt", "../project-secret", "/etc", "/", "..", "../project-secret/../.."]
)
def test_a_link_that_leads_out_is_refused(guard: PathGuard, root: Path, target: str) -> None:
    (root / "out").symlink_to(target)
    (root / "chain").symlink_to("out")
    for text in ("out", "chain", "out/x", "chain/x/y", "src/../out"):
        with pytest.raises(PathRefused, match="leads out of the project"):
            guard.resolve(text)


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "nope", "file/below"):
        with pytest.raises(ProjectRootInvalid) as caught:
            PathGuard(tmp_path / place)
        assert str(tmp_path) not in str(caught.value)


def test_relative_form_is_only_given_inside(guard: PathGuard) -> None:
    assert guard.relative_of(f"{guard.root}/x") == "./x"
    assert guard.relative_of(guard.root) == "./"
    for outside in (f"{guard.root}-secret", "/", guard.root.rpartition("/")[0]):
        with pytest.raises(PathRefused):
            guard.relative_of(outside)


def test_the_whole_disk_can_be_a_project() -> None:
    guard = PathGuard("/")
    assert guard.resolve("usr").resolved == "/usr"
    assert guard.resolve("/").relative == "./"
    assert relative_form("/", "/usr/bin") == "./usr/bin"
    assert guard.relative_of("/usr") == "./usr"


def test_names_are_compared_as_the_disk_has_them(guard: PathGuard, root: Path) -> None:
    """No folding of case or Unicode of our own: what the kernel calls another file is another."""
    (root / "\u00e9").write_text("composed", encoding="utf-8")
    assert guard.resolve("SRC/a.py").resolved == f"{guard.root}/SRC/a.py"
    composed, decomposed = guard.resolve("\u00e9"), guard.resolve("e\u0301")
    assert composed.resolved != decomposed.resolved
    os.close(guard.open_read(composed))
    with pytest.raises(FileMissing):
        guard.open_read(decomposed)
    assert is_inside("/p/src", "/p/src/a")
    assert not is_inside("/p/src", "/p/SRC/a")


# -- opening -------------------------------------------------------------------------------------


def test_what_was_checked_is_what_is_opened(guard: PathGuard, root: Path, tmp_path: Path) -> None:
    path = guard.resolve("src/a.py")
    (root / "src" / "a.py").unlink()
    (root / "src" / "a.py").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(PathRefused, match="symbolic link"):
        guard.open_read(path)


def test_a_directory_swapped_for_a_link_is_not_entered(
    guard: PathGuard, root: Path, tmp_path: Path
) -> None:
    path = guard.resolve("src/deep/outside.txt")
    (root / "src" / "deep").rmdir()
    (root / "src" / "deep").symlink_to(tmp_path)
    with pytest.raises(PathRefused, match="symbolic link"):
        guard.open_read(path)


def test_devices_fifos_and_sockets_are_never_opened(guard: PathGuard, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with pytest.raises(WrongKind, match="FIFO"):
        guard.open_read(guard.resolve("fifo"))


def test_what_is_missing_is_said_to_be_missing(guard: PathGuard) -> None:
    for text in ("nope", "src/nope/deeper", "src/a.py/below"):
        with pytest.raises(FileMissing) as caught:
            guard.open_read(guard.resolve(text))
        assert caught.value.data["path"] == f"./{text}"


@pytest.mark.parametrize("opener", [open_place, walk_place])
def test_both_ways_to_open_follow_no_link(root: Path, opener: Callable[[str], int]) -> None:
    (root / "link").symlink_to("src")
    real = os.path.realpath(root)
    handle = opener(f"{real}/src/a.py")
    assert os.fstat(handle).st_ino == (root / "src" / "a.py").stat().st_ino
    os.close(handle)
    for text in ("link", "link/a.py"):
        with pytest.raises(OSError, match="symbolic links"):
            opener(f"{real}/{text}")
    with pytest.raises(FileNotFoundError):
        opener(f"{real}/nope")
    with pytest.raises(NotADirectoryError):
        opener(f"{real}/src/a.py/below")


def test_the_walk_takes_no_dots(root: Path) -> None:
    with pytest.raises(OSError, match="Invalid"):
        walk_place(f"{root}/src/../src")


def test_a_file_that_may_not_be_read_is_said(
    guard: PathGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("kaged.workspace.guard.open_place", deny)
    with pytest.raises(FileUnreadable) as caught:
        guard.open_read(guard.resolve("src/a.py"))
    assert guard.root not in str(caught.value)


# -- properties ----------------------------------------------------------------------------------

_NAMES = st.sampled_from(["a", "b", "c", "..", ".", "", "link", "out", "up", "nope", "a b", "é"])
_PATHS = st.tuples(st.sampled_from(["", "/", "./", "//"]), st.lists(_NAMES, max_size=8)).map(
    lambda drawn: drawn[0] + "/".join(drawn[1])
)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> PathGuard:
    """A tree full of links, some of which lead out."""
    top = tmp_path_factory.mktemp("maze")
    root = top / "root"
    for place in ("a/a", "a/b/c", "b/a", "c"):
        (root / place).mkdir(parents=True)
    (root / "link").symlink_to("a/b")
    (root / "a" / "link").symlink_to("../b")
    (root / "a" / "b" / "link").symlink_to("../../c")
    (root / "out").symlink_to("..")
    (root / "a" / "out").symlink_to("/")
    (root / "b" / "up").symlink_to("..")
    (root / "up").symlink_to("b/up/a")
    (root / "c" / "a").write_text("x", encoding="utf-8")
    return PathGuard(root)


@given(text=_PATHS | st.text(max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_said_nothing_outside_is_ever_given(maze: PathGuard, text: str) -> None:
    try:
        path = maze.resolve(text)
    except PathRefused:
        return
    assert is_inside(maze.root, path.resolved)
    assert is_inside(maze.root, os.path.realpath(path.resolved))
    assert ".." not in path.resolved.split("/")
    assert path.relative.startswith("./")
    # The form that is given back means the same file.
    assert maze.resolve(path.relative).resolved == path.resolved


@given(text=_PATHS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_guard_opens_is_what_the_system_would(maze: PathGuard, text: str) -> None:
    try:
        path = maze.resolve(text)
        handle = maze.open_read(path)
    except (PathRefused, FileMissing):
        return
    try:
        there = os.fstat(handle)
        assert str(Path(f"/proc/self/fd/{handle}").readlink()) == path.resolved
        assert os.path.samestat(there, os.stat(path.resolved))  # noqa: PTH116 - a plain stat
    finally:
        os.close(handle)


@given(st.text(alphabet=st.characters(codec=None), max_size=60))
def test_reading_the_letters_gives_parts_or_a_refusal(text: str) -> None:
    try:
        parsed = parse_path(text)
    except PathRefused as error:
        str(error.data["detail"]).encode("utf-8")
        return
    assert all(part and part != "." and "/" not in part for part in parsed.parts)
    assert parsed.climbs == (".." in parsed.parts)


@given(st.binary(max_size=30).map(os.fsdecode))
def test_every_name_can_be_shown_and_sent(name: str) -> None:
    assert printable(name).isprintable()
    printable(name).encode("utf-8")
    sendable(name).encode("utf-8")
