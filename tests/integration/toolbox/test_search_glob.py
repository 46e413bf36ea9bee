from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fakes.search_lab import SearchLab, opened_search_lab, write_tree
from kaged.toolbox.search import SearchSettings
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[SearchLab]:
    root = tmp_path / "project"
    root.mkdir()
    async with opened_search_lab(root, tmp_path / "cache") as made:
        yield made


def aged(root: Path, *names: str) -> None:
    """Write files, the first one being the oldest."""
    for number, name in enumerate(names):
        write_tree(root, {name: "x"})
        os.utime(root / name, ns=(10**18, 10**18 + number * 10**9))


FORMS = {
    "*.ts": {"a.ts", "src/b.ts", "src/deep/c.ts"},
    "src/*.ts": {"src/b.ts"},
    "./src/*.ts": {"src/b.ts"},
    "src/**/*.ts": {"src/b.ts", "src/deep/c.ts"},
    "src/**": {"src/b.ts", "src/deep/c.ts", "src/deep/[id].tsx"},
    "src/": {"src/b.ts", "src/deep/c.ts", "src/deep/[id].tsx"},
    "**/?.ts": {"a.ts", "src/b.ts", "src/deep/c.ts"},
    "**/[bc].ts": {"src/b.ts", "src/deep/c.ts"},
    "**/[!b].ts": {"a.ts", "src/deep/c.ts"},
    "**/*.{tsx,md}": {"src/deep/[id].tsx", "README.md"},
    "{src,docs}/**/*.ts": {"src/b.ts", "src/deep/c.ts"},
    "src/deep/[id].tsx": {"src/deep/[id].tsx"},
    "[id].tsx": {"src/deep/[id].tsx"},
    "!**/*.ts": {"src/deep/[id].tsx", "README.md"},
    "nothing.*": set[str](),
}


@requirement("AT-GLOB-02")
async def test_every_form_of_pattern(lab: SearchLab) -> None:
    aged(lab.root, "a.ts", "src/b.ts", "src/deep/c.ts", "src/deep/[id].tsx", "README.md")
    for pattern, expected in FORMS.items():
        result = await lab.call("search.glob", pattern=pattern)
        assert set(result["files"]) == {f"./{name}" for name in expected}, pattern


async def test_a_pattern_written_from_the_root_works_below_it(lab: SearchLab) -> None:
    aged(lab.root, "src/a.ts", "src/x/b.ts")
    result = await lab.call("search.glob", pattern="src/x/*.ts", path="./src")
    assert result["files"] == ["./src/x/b.ts"]


@requirement("AT-GLOB-06")
async def test_a_slow_walk_gives_the_files_so_far(lab: SearchLab, tmp_path: Path) -> None:
    assert SearchSettings().time_s == 60
    aged(lab.root, "a.txt")
    slow = tmp_path / "slow.sh"
    slow.write_text("#!/bin/sh\nprintf './a.txt\\000'\nexec sleep 1000\n", encoding="utf-8")
    slow.chmod(0o755)
    async with opened_search_lab(
        lab.root, tmp_path / "cache", settings=SearchSettings(time_s=0.5), program=str(slow)
    ) as other:
        result = await other.call("search.glob", pattern="*.txt")
    assert result["files"] == ["./a.txt"]
    assert result["truncated"] is True


@requirement("AT-GLOB-07")
async def test_ignored_files_and_git_are_left_out(lab: SearchLab) -> None:
    write_tree(
        lab.root,
        {
            ".gitignore": "build/\n*.min.js\n",
            "build/x.js": "",
            "a.min.js": "",
            "a.js": "",
            ".git/hooks/h.js": "",
            "sub/.gitignore": "no.js\n",
            "sub/no.js": "",
            "sub/yes.js": "",
        },
    )
    for pattern in ("*.js", "**/*.js", "{a,build/x,sub/*,a.min}.js"):
        result = await lab.call("search.glob", pattern=pattern)
        assert set(result["files"]) == {"./a.js", "./sub/yes.js"}
    assert (await lab.call("search.glob", pattern="build/*.js"))["files"] == []
    assert (await lab.call("search.glob", pattern=".git/**"))["files"] == []
    ignored = await lab.call("search.glob", pattern="build/*.js", gitignore=False)
    assert ignored["files"] == ["./build/x.js"]


@requirement("AT-GLOB-09")
async def test_a_pattern_that_climbs_is_refused(lab: SearchLab) -> None:
    climbing = ("../*", "a/../../b", "src/../../*", "{..,a}/*", "/etc/*", "~/x", "!../*", "..")
    for pattern in (*climbing, "{a,../b}"):
        error = await lab.refusal("search.glob", pattern=pattern)
        assert error.code == "invalid_params", pattern
    assert (await lab.refusal("search.glob", pattern="*", path="../")).code == "invalid_params"


@requirement("AT-GLOB-12")
async def test_a_bad_glob_is_an_invalid_pattern(lab: SearchLab) -> None:
    for pattern in ("[", "a[b", "{a", "", "!", "[z-a].ts", "\0"):
        error = await lab.refusal("search.glob", pattern=pattern)
        assert error.code == "invalid_pattern", pattern
    missing = await lab.refusal("search.glob", pattern="*", path="./nope")
    assert missing.code == "file_not_found"


async def test_links_to_files_are_listed_when_their_target_may_be_read(
    lab: SearchLab, tmp_path: Path
) -> None:
    secret = write_tree(tmp_path / "outside", {"secret.md": "x"}) / "secret.md"
    write_tree(lab.root, {"src/real.md": "x", "data/d.md": "x", ".gitignore": "ignored.md\n"})
    (lab.root / "src/in.md").symlink_to("real.md")
    (lab.root / "src/to-data.md").symlink_to("../data/d.md")
    (lab.root / "src/out.md").symlink_to(secret)
    (lab.root / "src/ignored.md").symlink_to("real.md")
    (lab.root / "src/gone.md").symlink_to("nowhere.md")
    (lab.root / "src/etc").symlink_to("/etc")
    free = await lab.call("search.glob", pattern="*.md")
    assert set(free["files"]) == {
        "./src/real.md",
        "./src/in.md",
        "./src/to-data.md",
        "./data/d.md",
    }
    caged = await lab.call("search.glob", "ro ./src", pattern="*.md")
    assert set(caged["files"]) == {"./src/real.md", "./src/in.md"}
    assert set(caged["outside_cage"]) == {"./src/to-data.md", "./data/d.md"}


async def test_odd_names_can_be_listed_and_sent(lab: SearchLab) -> None:
    write_tree(lab.root, {"new\nline.txt": "", "-x.txt": "", "[a].txt": "", "{b}.txt": ""})
    Path(os.fsdecode(os.fsencode(lab.root) + b"/\xff.txt")).write_bytes(b"")
    result = await lab.call("search.glob", pattern="*.txt")
    assert set(result["files"]) == {
        "./new\nline.txt",
        "./-x.txt",
        "./[a].txt",
        "./{b}.txt",
        "./\\xff.txt",
    }
    escaped = await lab.call("search.glob", pattern="\\{b\\}.txt")
    assert escaped["files"] == ["./{b}.txt"]


async def test_a_file_is_no_place_to_list(lab: SearchLab) -> None:
    write_tree(lab.root, {"a.txt": ""})
    assert (await lab.refusal("search.glob", pattern="*", path="./a.txt")).code == "invalid_params"
