"""The list of protected paths: what it holds, at which depth, and what an operator takes out."""

from __future__ import annotations

import pytest

from kaged.kernel.protected_list import PROTECTED, PathClass, ProtectedPath
from kaged.kernel.protected_paths import (
    ProtectedRules,
    ends_protected,
    find_protected,
    leads_on,
    may_lead,
    rules_for,
)

RUN = PathClass.RUN


@pytest.mark.parametrize(
    ("path", "kind", "depth"),
    [
        (".git/hooks", RUN, 2),
        (".git/hooks/pre-commit", RUN, 2),
        ("vendor/lib/.git/hooks/post-merge", RUN, 4),
        (".git/modules/a/hooks/pre-push", RUN, 4),
        (".git/modules/a/modules/b/hooks/x", RUN, 6),
        (".GIT/Hooks/x", RUN, 2),
        (".git/config", PathClass.GIT_CONFIG, 2),
        (".git/config.worktree", PathClass.GIT_CONFIG, 2),
        (".git/modules/a/config", PathClass.GIT_CONFIG, 4),
        (".git/worktrees/w/config.worktree", PathClass.GIT_CONFIG, 4),
        (".envrc", RUN, 1),
        ("deep/down/.envrc", RUN, 3),
        (".vscode/tasks.json", RUN, 1),
        (".idea/workspace.xml", RUN, 1),
        (".devcontainer/devcontainer.json", RUN, 1),
        (".husky/pre-commit", RUN, 1),
        (".mcp.json", RUN, 1),
        (".claude/settings.json", RUN, 1),
        (".cursor/mcp.json", RUN, 1),
        (".codex/config.toml", RUN, 1),
        (".npmrc", RUN, 1),
        (".yarnrc", RUN, 1),
        (".yarnrc.yml", RUN, 1),
        ("pip.conf", RUN, 1),
        (".github/workflows/ci.yml", PathClass.REVIEWED, 2),
        ("Makefile", PathClass.REVIEWED, 1),
        ("sub/rules.mk", PathClass.REVIEWED, 2),
        ("AGENTS.md", PathClass.REVIEWED, 1),
        (".gitattributes", PathClass.REVIEWED, 1),
    ],
)
def test_each_path_of_the_list_is_found(path: str, kind: PathClass, depth: int) -> None:
    found = find_protected(path.split("/"))
    assert found is not None
    assert (found.entry.kind, found.depth) == (kind, depth)


@pytest.mark.parametrize(
    "path",
    [
        "src/hooks/a.py",
        ".git/HEAD",
        ".git/index.lock",
        ".git/refs/heads/hooks",
        ".github/CODEOWNERS",
        ".git/objects/aa/config",
        "config",
        "envrc",
        "Makefile.am",
        "docs/vscode/x",
    ],
)
def test_others_are_not(path: str) -> None:
    assert find_protected(path.split("/")) is None


def test_a_listing_of_a_folder_notices_every_pattern() -> None:
    for entry in PROTECTED:
        last = entry.pattern.rpartition("/")[2].replace("*", "x")
        assert entry.pattern.startswith(".git/") or ends_protected(last), entry
    assert not ends_protected("main.py")


@pytest.mark.parametrize("entry", PROTECTED, ids=[one.pattern for one in PROTECTED])
def test_every_entry_is_found_as_itself_below_it_and_anywhere(entry: ProtectedPath) -> None:
    name = entry.pattern.replace("*", "x")
    assert name == name.casefold()  # names are compared without case
    spelled = (name, name.upper(), f"deep/down/{name}")
    below = () if entry.kind is PathClass.GIT_CONFIG else (f"{name}/inside/it",)
    for path in (*spelled, *below):
        found = find_protected(path.split("/"))
        assert found is not None, path
        assert found.entry == entry, path
        assert found.depth == name.count("/") + 1 + (2 if path.startswith("deep") else 0)
    for other in (f"x{name}", f"{name}x"):
        found = find_protected(other.split("/"))
        assert found is None or found.entry != entry or "*" in entry.pattern, other


def test_no_path_is_on_the_list_twice() -> None:
    patterns = [one.pattern for one in PROTECTED]
    assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize(
    "path",
    [
        "package.json",
        "pyproject.toml",
        "Cargo.toml",
        "build.rs",
        "setup.py",
        "conftest.py",
        "Dockerfile",
        ".env",
        ".cargo/registry/index",
        ".yarn/cache/a.zip",
        ".yarn/install-state.gz",
        ".bundle/plugin",
        ".config/settings.toml",
        "config/config.toml",
        "tools/build.py",
        ".github/dependabot.yml",
        "bazel/tools",
    ],
)
def test_the_work_of_every_day_is_not_on_the_list(path: str) -> None:
    assert find_protected(path.split("/")) is None


@pytest.mark.parametrize("path", [".cargo", "sub/.Yarn", ".jj", ".jj/repo", ".config", "mise"])
def test_a_folder_above_a_refused_path_leads_on(path: str) -> None:
    assert leads_on(path.split("/"))
    assert may_lead(path.rpartition("/")[2])


@pytest.mark.parametrize(
    "path", ["repo", "gradle", ".cargo/registry", ".idea", ".cargo/config.toml", "src", ".jj/x"]
)
def test_others_lead_to_nothing_that_is_refused(path: str) -> None:
    assert not leads_on(path.split("/"))
    assert not leads_on([])


def test_a_granted_folder_below_a_project_counts_by_its_whole_way() -> None:
    rules = ProtectedRules(above=("sub", ".cargo"))
    found = rules.find(["config.toml"])
    assert found is not None
    assert (found.entry.pattern, found.depth) == (".cargo/config.toml", 1)
    assert rules.find(["registry", "config.toml"]) is None
    assert ProtectedRules(above=(".jj",)).find(["repo", "config.toml"]) is not None
    assert ProtectedRules(above=(".idea",)).find(["a.xml"]) is None  # judged as a grant
    assert ProtectedRules([("config.toml",)], above=(".cargo",)).find(["config.toml"]) is None
    assert ProtectedRules(refuse_reviewed=True).below((".cargo",)).refuse_reviewed


def test_an_operator_takes_a_path_out_of_the_list_for_one_project() -> None:
    allowed = [("/work/shop", "./.husky/"), ("/work/shop", ".git/hooks"), ("/work/other", ".npmrc")]
    rules = rules_for("/work/shop", allowed)
    assert rules.find([".husky", "pre-commit"]) is None
    assert rules.find([".git", "hooks", "pre-commit"]) is None
    assert rules.find([".npmrc"]) is not None
    assert rules.find(["sub", ".husky", "x"]) is not None
    # A grant above the project, and one below the allowed path.
    assert rules_for("/work", allowed).find(["shop", ".husky"]) is None
    assert rules_for("/work/shop/.husky", allowed).find([".npmrc"]) is None
    assert rules_for("/work/shop2", allowed).find([".husky"]) is not None


def test_the_second_class_is_refused_by_setting() -> None:
    found = find_protected(["Makefile"])
    assert found is not None
    assert not ProtectedRules().refuses(found)
    assert ProtectedRules(refuse_reviewed=True).refuses(found)
