"""Ways out of a project by its files' names: every one of them is tried with every file tool."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest

from fakes.tool_lab import ToolLab, cage
from kaged.toolbox.ast import ast_tools
from kaged.toolbox.files import file_tools
from kaged.toolbox.search import search_tools
from kaged.tools import ToolError
from kaged.workspace.syscalls import RENAME_EXCHANGE, rename_with
from requirements import requirement

SECRET: Final = "the secret of the neighbour"
DEEP: Final = "../" * 40

REFUSED: Final = (
    # up and out, by letters
    "..",
    "../",
    "../outside.txt",
    "../../etc/passwd",
    "./../outside.txt",
    ".//..//outside.txt",
    "src/../../outside.txt",
    "src/./../../outside.txt",
    "src/deep/../../../outside.txt",
    "nope/../../outside.txt",
    "nope/nada/../../../outside.txt",
    "src/a.py/../../../outside.txt",
    f"{DEEP}etc/passwd",
    f"src/{DEEP}etc/passwd",
    "../project/../outside.txt",
    "../project/src/a.py",
    "../project-secret/key",
    "src/..//../outside.txt",
    "./././../outside.txt",
    "..///..///etc///passwd",
    # absolute
    "/",
    "//",
    "/etc/passwd",
    "//etc/passwd",
    "///etc//passwd",
    "/./etc/passwd",
    "/../etc/passwd",
    "/etc/../etc/passwd",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/proc/self/cwd",
    "/proc/1/mem",
    "/dev/zero",
    "/dev/stdin",
    "/dev/tty",
    "/sys/kernel",
    "{top}/outside.txt",
    "{top}/project/../outside.txt",
    "{top}/project-secret/key",
    "{top}/project/src/../../outside.txt",
    # other worlds
    "~",
    "~/x",
    "~root/x",
    "~+/x",
    "C:\\Windows\\win.ini",
    "c:/windows",
    "\\\\host\\share",
    "..\\outside.txt",
    "src\\..\\..\\outside.txt",
    "file:///etc/passwd",
    "http://localhost/x",
    # broken text
    "",
    "\0",
    "src/a.py\0",
    "src/a.py\0.png",
    "../outside.txt\0",
    "x\ud800",
    "a" * 256,
    "a/" * 2048 + "b",
    "a" * 100_000,
    # through links
    "link-up",
    "link-up/outside.txt",
    "link-root/etc/passwd",
    "link-file",
    "chain-1",
    "chain-1/outside.txt",
    "src/link-out/outside.txt",
    "src/link-out/new.txt",
    "src/link-out/made/up/new.txt",
    "dangling-out",
    "link-proc/environ",
    "link-fd/0",
    "src/deep/../link-out/outside.txt",
    "link-up/project/../outside.txt",
    "link-sibling/key",
    "loop-1",
    "loop-1/x",
    "link-self/../outside.txt",
)
"""What names something outside, or nothing that can be named."""

LITERAL: Final = (
    "%2e%2e/outside.txt",
    "..%2foutside.txt",
    "%2e%2e%2foutside.txt",
    "..%c0%af/outside.txt",
    "\uff0e\uff0e/outside.txt",
    "\u2024\u2024/outside.txt",
    "..\u2215outside.txt",
    "..\u2044outside.txt",
    ".../outside.txt",
    "..;/outside.txt",
    ".. /outside.txt",
    " ../outside.txt",
    "..\u200b/outside.txt",
    "..\n/outside.txt",
    "$HOME/x",
    "${PWD}/../x.txt",
    "`pwd`",
    "$(cat outside.txt)",
    "*",
    "-rf",
    "./~/x",
    "SRC/a.py",
    "src/A.py",
    "src/a.py ",
    "src/a.py.",
    "C:",
    "nul",
    "PROJECT/../outside",
)
"""What looks dangerous and is just a name inside the project."""


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A project with neighbours, and with links to all of them."""
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.py").write_text("inside\n", encoding="utf-8")
    (tmp_path / "project-secret").mkdir()
    for name in ("outside.txt", "project-secret/key"):
        (tmp_path / name).write_text(f"{SECRET}\n", encoding="utf-8")
    for name, target in (
        ("link-up", ".."),
        ("link-root", "/"),
        ("link-file", "../outside.txt"),
        ("chain-1", "chain-2"),
        ("chain-2", "src/chain-3"),
        ("src/chain-3", "../.."),
        ("src/link-out", str(tmp_path)),
        ("dangling-out", "../not-there-yet"),
        ("link-proc", "/proc/self"),
        ("link-fd", "/proc/self/fd"),
        ("link-sibling", "../project-secret"),
        ("loop-1", "loop-2"),
        ("loop-2", "loop-1"),
        ("link-self", "."),
    ):
        (root / name).symlink_to(target)
    return tmp_path


def outside(top: Path) -> dict[str, bytes | None]:
    """Return everything that is not the project's."""
    return {
        str(one): one.read_bytes() if one.is_file() else None
        for one in (top, *top.iterdir(), *(top / "project-secret").iterdir())
        if one.name != "project"
    }


def calls(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "file.read", {"path": path}
    yield "edit.text", {"path": path, "old_string": SECRET, "new_string": "x"}
    yield "file.create", {"path": path, "content": "planted"}
    yield "file.write", {"path": path, "content": "planted"}


def test_the_list_of_spellings_is_long_enough() -> None:
    assert len(set(REFUSED)) + len(set(LITERAL)) >= 100


@requirement("AT-FILE-03")
@pytest.mark.parametrize("spelling", REFUSED, ids=lambda text: ascii(text)[:40])
async def test_no_spelling_leads_out_of_the_project(top: Path, spelling: str) -> None:
    text = spelling.replace("{top}", str(top))
    before = outside(top)
    root = top / "project"
    for policy in (None, cage("rw ./", root=root)):
        lab = ToolLab(root, file_tools(), policy)
        for tool, params in calls(text):
            error = await lab.refusal_with(tool, {**params, "path": text})
            if text.startswith("loop-"):
                assert error.code in {"invalid_params", "file_exists", "file_not_found"}
            else:
                assert (error.code, error.number) == ("invalid_params", -32602), (tool, error)
                assert error.detail, "the problem is named"
            said = str(error.as_json())
            assert SECRET not in said
            assert text.startswith("/") or str(top) not in said, "no path of the host"
    assert outside(top) == before
    assert not (top / "not-there-yet").exists()


@pytest.mark.parametrize("spelling", LITERAL, ids=lambda text: ascii(text)[:40])
async def test_what_only_looks_dangerous_stays_a_name_inside(top: Path, spelling: str) -> None:
    before = outside(top)
    root = top / "project"
    lab = ToolLab(root, file_tools())
    if spelling != "PROJECT/../outside":
        error = await lab.refusal("file.read", path=spelling)
        assert error.code == "file_not_found"
    made = await lab.call("file.create", path=spelling, content="planted")
    assert made["path"].startswith("./")
    assert (await lab.call("file.read", path=made["path"]))["content"] == "1: planted"
    assert outside(top) == before


@requirement("AT-FILE-03")
async def test_an_absolute_path_inside_is_taken(top: Path) -> None:
    lab = ToolLab(top / "project", file_tools())
    answer = await lab.call("file.read", path=f"{top}/project/src/a.py")
    assert answer["path"] == "./src/a.py"


@requirement("AT-FILE-02")
@pytest.mark.parametrize("text", ["../../etc", "link-up", "src/link-out", "/etc", "link-root/etc"])
async def test_no_tool_that_takes_a_path_leaves_the_project(top: Path, text: str) -> None:
    """Without a cage, too; and before a search engine is even asked, for there is none here."""
    nothing = cast("Any", None)
    tools = (*file_tools(), *search_tools(nothing), *ast_tools(nothing, nothing))
    lab = ToolLab(top / "project", tools)
    attempts: list[tuple[str, dict[str, Any]]] = [
        *calls(text),
        ("search.grep", {"pattern": "x", "path": text}),
        ("search.glob", {"pattern": "*", "path": text}),
        ("search.ast", {"pattern": "f($A)", "lang": "python", "paths": [text]}),
        ("edit.ast", {"rewrites": {"f($A)": "g($A)"}, "lang": "python", "path": text}),
    ]
    assert {tool for tool, _ in attempts} == set(lab.registry.names())
    for tool, params in attempts:
        error = await lab.refusal_with(tool, params)
        assert (error.code, error.number) == ("invalid_params", -32602), tool
        assert "project" in str(error.detail), "the problem is named"


@requirement("AT-AMB-24")
async def test_outside_the_project_and_outside_the_cage_are_two_errors(top: Path) -> None:
    root = top / "project"
    (root / "data").mkdir()
    lab = ToolLab(root, file_tools(), cage("rw ./src", root=root), "primary.subagents.x")
    for tool, params in calls("../outside.txt"):
        assert (await lab.refusal_with(tool, params)).code == "invalid_params"
    for tool, params in calls("./data/x"):
        assert (await lab.refusal_with(tool, params)).code == "capability_denied"


@requirement("AT-FILE-17", "AT-PERM-04")
async def test_a_link_out_of_the_cage_is_denied_and_one_within_works(top: Path) -> None:
    root = top / "project"
    (root / "data").mkdir()
    (root / "data" / "secret").write_text(SECRET, encoding="utf-8")
    (root / "src" / "link").symlink_to("../data/secret")
    (root / "src" / "near").symlink_to("a.py")
    (root / "linked-src").symlink_to("src")
    lab = ToolLab(root, file_tools(), cage("ro ./src", root=root), "primary.subagents.x")
    for path in ("./src/link", "src/../src/link", "linked-src/link"):
        error = await lab.refusal("file.read", path=path)
        assert error.code == "capability_denied"
        assert SECRET not in str(error.as_json())
    assert (await lab.call("file.read", path="./src/near"))["content"] == "1: inside"
    assert (await lab.call("file.read", path="linked-src/a.py"))["content"] == "1: inside"
    # A mount that is itself a link grants what it leads to, by every name of it.
    lab = ToolLab(root, file_tools(), cage("rw ./linked-src", root=root), "primary.subagents.x")
    for path in ("linked-src/a.py", "src/a.py", "src/near"):
        assert (await lab.call("file.read", path=path))["content"] == "1: inside"
    await lab.call("file.create", path="src/not/there/yet", content="x")
    assert (await lab.refusal("file.create", path="src/link/x", content="x")).code in {
        "capability_denied",
        "invalid_params",
    }
    (root / "src" / "away").symlink_to("../data/new-dir")
    error = await lab.refusal("file.create", path="src/away/deep/new", content="x")
    assert error.code == "capability_denied"
    assert not (root / "data" / "new-dir").exists()


@requirement("AT-PERM-26")
async def test_a_denial_does_not_tell_whether_the_file_exists(top: Path) -> None:
    root = top / "project"
    (root / "data").mkdir()
    (root / "data" / "is").write_text(SECRET, encoding="utf-8")
    lab = ToolLab(root, file_tools(), cage("ro ./src", root=root), "primary.subagents.x")
    for path in ("file.read", "file.write", "file.create", "edit.text"):
        answers: list[str] = []
        for name in ("./data/is", "./data/no", "./data/is/below", "./nodata/no"):
            params = next(params for tool, params in calls(name) if tool == path)
            error = await lab.refusal_with(path, params)
            answers.append(str(error.as_json()).replace(name, "PATH"))
        assert len(set(answers)) == 1, answers


@requirement("AT-FILE-18")
@pytest.mark.parametrize(
    "kind",
    [
        "fifo",
        "socket",
        pytest.param("character device", marks=pytest.mark.needs_root),
        pytest.param("block device", marks=pytest.mark.needs_root),
    ],
)
async def test_special_files_are_refused_without_being_opened(top: Path, kind: str) -> None:
    root = top / "project"
    there = root / "special"
    listening: socket.socket | None = None
    if kind == "fifo":
        os.mkfifo(there)
    elif kind == "socket":
        listening = socket.socket(socket.AF_UNIX)
        here = Path.cwd()
        os.chdir(root)  # the name must be short
        try:
            listening.bind("special")
        finally:
            os.chdir(here)
    else:
        number, mode = ((1, 5), 0o020000) if kind == "character device" else ((7, 0), 0o060000)
        os.mknod(there, 0o600 | mode, os.makedev(*number))
    lab = ToolLab(root, file_tools())
    for tool, params in calls("special"):
        error = await lab.refusal_with(tool, params)
        expected = "file_exists" if tool == "file.create" else "invalid_params"
        assert error.code == expected, tool
    if listening is not None:
        listening.close()


class Swapper:
    """Swaps a name between what is honest and a link to the neighbour, as fast as it can."""

    def __init__(self, name: Path, link: Path) -> None:
        self._name, self._link = name, link
        self._stop = threading.Event()
        self.swaps = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        here = os.open("/", os.O_PATH)
        while not self._stop.is_set():
            rename_with(RENAME_EXCHANGE, str(self._name), here, str(self._link), here)
            self.swaps += 1
        os.close(here)

    @contextmanager
    def running(self) -> Generator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


@requirement("AT-PERM-15")
@pytest.mark.parametrize("target", ["directory", "file"])
async def test_links_swapped_in_during_calls_never_help(top: Path, target: str) -> None:
    """The check passes with the honest one in place; the link comes before the file is opened."""
    root = top / "project"
    victim = top / "victim"
    victim.mkdir()
    (victim / "f").write_text(SECRET, encoding="utf-8")
    (root / "swap").mkdir()
    (root / "swap" / "f").write_text("honest", encoding="utf-8")
    link = root / "link"
    name = root / "swap" if target == "directory" else root / "swap" / "f"
    link.symlink_to(victim if target == "directory" else victim / "f")
    lab = ToolLab(root, file_tools())
    swapper = Swapper(name, link)
    seen: list[str] = []
    with swapper.running():
        for turn in range(400):
            attempts: list[tuple[str, dict[str, Any]]] = [
                ("file.read", {"path": "swap/f"}),
                ("file.write", {"path": "swap/f", "content": f"planted {turn}"}),
                ("file.create", {"path": f"swap/new{turn}", "content": "planted"}),
                ("edit.text", {"path": "swap/f", "old_string": "honest", "new_string": "planted"}),
            ]
            for tool, params in attempts:
                try:
                    seen.append(str(await lab.call_with(tool, params)))
                except ToolError as error:
                    seen.append(str(error.as_json()))
    assert swapper.swaps > 100, "the attack did take place"
    assert SECRET not in "".join(seen)
    assert "internal_error" not in "".join(seen)
    assert any("honest" in one or "planted" in one for one in seen), "and not every call failed"
    assert sorted(one.name for one in victim.iterdir()) == ["f"]
    assert (victim / "f").read_text(encoding="utf-8") == SECRET
