"""What the repositories below a folder obey: their configuration files, and what these name."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable
from typing import Final

from kaged.cage.protected.files import read_content
from kaged.cage.protected.tree import Inventory, Parts, ProtectedTree
from kaged.kernel.git_config import MalformedGitConfig, parse_git_config
from kaged.kernel.protected_paths import GIT_CONFIGS, GIT_DIR

MAX_CONFIGS: Final = 512
_MAX_POINTER_BYTES: Final = 4096
_IN_FLIGHT: Final = (
    *("index.lock", "rebase-merge", "rebase-apply", "sequencer"),
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"),
)


def parts_below(root: str, path: str) -> Parts | None:
    """Return a path as names below the root, every link followed; None when it lies elsewhere."""
    real = os.path.realpath(path)
    prefix = root.rstrip("/") + "/"
    return tuple(real[len(prefix) :].split("/")) if real.startswith(prefix) else None


def git_dirs(tree: ProtectedTree, found: Inventory) -> frozenset[Parts]:
    """Return every repository's own folder below the root, also those that only a file points to.

    A `.git` file or a `commondir` may name a folder that nothing else shows to be a repository.
    """
    dirs = set(found.git_dirs)
    for parts in found.gitfiles:
        dirs.update(_pointed(tree, parts, b"gitdir:"))
    for parts in tuple(dirs):
        dirs.update(_pointed(tree, (*parts, "commondir"), b""))
    return frozenset(dirs)


def config_files(tree: ProtectedTree, dirs: Iterable[Parts]) -> frozenset[Parts]:
    """Return the configuration files of these repositories, with those that they include."""
    files: set[Parts] = set()
    waiting: list[Parts] = [(*one, name) for one in dirs for name in GIT_CONFIGS]
    while waiting and len(files) < MAX_CONFIGS:
        parts = waiting.pop()
        if parts in files or tree.rules.allows(parts):
            continue
        files.add(parts)
        base = posixpath.dirname(tree.path(parts))
        for key, value in _settings(tree, parts):
            if key.startswith(("include.", "includeif.")) and key.endswith(".path"):
                below = _below(tree, base, value)
                if below is not None:
                    waiting.append(below)
    return frozenset(files)


def hook_folders(tree: ProtectedTree, dirs: Iterable[Parts]) -> frozenset[Parts]:
    """Return the folders of the work tree that these repositories take their hooks from."""
    found: set[Parts] = set()
    for one in dirs:
        work_tree = tree.path(one[:-1] if one[-1:] == (GIT_DIR,) else one)
        for key, value in _settings(tree, (*one, GIT_CONFIGS[0])):
            below = _below(tree, work_tree, value) if key == "core.hookspath" else None
            if below:
                found.add(below)
    return frozenset(found)


def in_flight(tree: ProtectedTree, dirs: Iterable[Parts]) -> bool:
    """Return whether git is in the middle of something in one of these repositories."""
    return any(tree.signature((*one, name)) is not None for one in dirs for name in _IN_FLIGHT)


def just_changed(tree: ProtectedTree, dirs: Iterable[Parts], within_ns: int) -> bool:
    """Return whether git has ended something in one of these repositories a moment ago."""
    since = time.time_ns() - within_ns
    return any(
        signature[-1] > since
        for one in dirs
        for name in ("index", "HEAD")
        if (signature := tree.signature((*one, name))) is not None
    )


def _settings(tree: ProtectedTree, parts: Parts) -> list[tuple[str, str]]:
    try:
        data = read_content(tree.root, parts).data
        return [(one.key, one.value or "") for one in parse_git_config(data or b"")]
    except (OSError, MalformedGitConfig):
        return []


def _below(tree: ProtectedTree, base: str, value: str) -> Parts | None:
    if not value or "\0" in value:
        return None
    text = os.path.expanduser(value) if value.startswith("~") else value  # noqa: PTH111 - text
    return parts_below(tree.root, posixpath.join(base, text))


def _pointed(tree: ProtectedTree, parts: Parts, word: bytes) -> list[Parts]:
    """Return the folder that a file of one line names, where it lies below the root."""
    try:
        content = read_content(tree.root, parts)
    except OSError:
        return []
    base = posixpath.dirname(tree.path(parts))
    if content.link is not None:
        target = content.link
    else:
        data = (content.data or b"")[:_MAX_POINTER_BYTES]
        if not data.startswith(word):
            return []
        target = os.fsdecode(data[len(word) :].strip())
    found = _below(tree, base, target)
    return [] if found is None or not found else [found]
