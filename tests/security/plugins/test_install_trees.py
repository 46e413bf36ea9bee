"""What a hostile plugin directory tries while it is copied into the store."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.store_lab import StoreLab, write_plugin
from kaged.plugins.errors import TreeRefused
from kaged.plugins.treecopy import TreeLimits, copy_tree, read_tree
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[StoreLab]:
    made = StoreLab(tmp_path / "home")
    made.root.mkdir()
    await made.open()
    yield made
    await made.close()


@requirement("PH-INST-32")
@pytest.mark.parametrize(
    "leads_to",
    [
        "/etc/passwd",
        "../secret",
        "..",
        "../src2",
        "sub/../../secret",
        "./../secret",
        "sub/../../../secret",
        "//etc/passwd",
        "/",
        "x/" * 600,
    ],
)
async def test_a_link_that_leaves_is_refused(lab: StoreLab, tmp_path: Path, leads_to: str) -> None:
    (tmp_path / "secret").write_text("s3cret", encoding="utf-8")
    source = write_plugin(tmp_path / "src", {"sub/x": "x"})
    (source / "link").symlink_to(leads_to)
    with pytest.raises(TreeRefused) as caught:
        await lab.install(source)
    assert caught.value.data["path"] == "link"
    assert lab.names() == []


async def test_a_chain_of_links_cannot_climb_out(lab: StoreLab, tmp_path: Path) -> None:
    """`deep/down` really is `/top`; a name behind it would climb from there."""
    source = write_plugin(tmp_path / "src", {"top/x": "x", "deep/y": "y"})
    (source / "deep" / "down").symlink_to("../top")
    (source / "deep" / "out").symlink_to("down/../../../secret")
    with pytest.raises(TreeRefused, match="deep/out"):
        await lab.install(source)


@given(
    steps=st.lists(st.sampled_from(["..", ".", "a", "b", ""]), max_size=8),
    depth=st.integers(0, 3),
)
def test_links_that_are_let_through_stay_inside(steps: list[str], depth: int) -> None:
    text = "/".join(steps)
    if not text:
        return
    with TemporaryDirectory() as folder:
        where = Path(folder, "root", *["d"] * depth)
        where.mkdir(parents=True)
        (where / "link").symlink_to(text)
        with suppress(TreeRefused):
            read_tree(Path(folder, "root"))
            assert os.path.normpath(f"{where}/{text}").startswith(f"{folder}/root")


async def test_special_files_and_setuid_programs_are_refused(lab: StoreLab, tmp_path: Path) -> None:
    fifo = write_plugin(tmp_path / "fifo")
    os.mkfifo(fifo / "pipe")
    with pytest.raises(TreeRefused, match="a FIFO"):
        await lab.install(fifo)
    setuid = write_plugin(tmp_path / "setuid")
    (setuid / "main.py").chmod(0o4755)
    with pytest.raises(TreeRefused, match="setuid"):
        await lab.install(setuid)
    listening = write_plugin(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening / "sock"))
        with pytest.raises(TreeRefused, match="a socket"):
            await lab.install(listening)
    assert lab.names() == []


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (TreeLimits(entries=3), "one too many"),
        (TreeLimits(size_bytes=10), "larger than"),
        (TreeLimits(depth=2), "directories deep"),
    ],
)
def test_huge_trees_are_refused(tmp_path: Path, limits: TreeLimits, why: str) -> None:
    source = write_plugin(tmp_path / "src", {"a/b/c/d": "0123456789abcdef"})
    with pytest.raises(TreeRefused, match=why):
        read_tree(source, limits)


async def test_a_linked_manifest_outside_is_not_read(lab: StoreLab, tmp_path: Path) -> None:
    real = write_plugin(tmp_path / "real")
    source = tmp_path / "src"
    source.mkdir()
    (source / "kaged-plugin.yaml").symlink_to(real / "kaged-plugin.yaml")
    with pytest.raises(Exception, match="leaves"):
        await lab.install(source)


def test_modes_are_made_plain_and_the_digest_sees_every_change(tmp_path: Path) -> None:
    source = write_plugin(tmp_path / "src", {"a": "1", "dir/b": "2"})
    (source / "a").chmod(0o666)
    (source / "dir").chmod(0o777)
    facts = copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "a").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "copy" / "dir").stat().st_mode & 0o777 == 0o755
    assert read_tree(tmp_path / "copy") == facts
    seen = {facts.digest}
    (source / "a").chmod(0o755)
    seen.add(read_tree(source).digest)
    (source / "a").write_text("3", encoding="utf-8")
    seen.add(read_tree(source).digest)
    (source / "a").rename(source / "c")
    seen.add(read_tree(source).digest)
    (source / "empty").mkdir()
    seen.add(read_tree(source).digest)
    (source / "l").symlink_to("c")
    seen.add(read_tree(source).digest)
    assert len(seen) == 6
