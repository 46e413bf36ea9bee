"""What the repositories below a folder obey: their configuration files, and what these name."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable
from typing import Final

from kaged.base.plain_files import read_plain_file
from kaged.cage.protected.files import MAX_KEPT_BYTES, read_content
from kaged.cage.protected.tree import Inventory, Parts, ProtectedTree
from kaged.kernel.git_names import (
    GitRepository,
    NamedByGit,
    ReadFile,
    folders_above,
    follow_configs,
    operator_configs,
    repository_in,
    repository_of,
)
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


def repositories(
    tree: ProtectedTree,
    found: Inventory,
    dirs: Iterable[Parts],
    beside: Iterable[str],
    read: ReadFile,
) -> tuple[GitRepository, ...]:
    """Return every repository whose configuration may name something below the root.

    These are the ones below it, the one that it lies in, and those at the roots of other folders
    that the same guest can write (`beside`).
    """
    # The root may become a work tree, and the operator's settings for all of them hold there, too.
    work_trees = {tree.root, *(tree.path(one[:-1]) for one in found.gitfiles)}
    bare: set[str] = set()
    for one in dirs:
        if one[-1:] == (GIT_DIR,):
            work_trees.add(tree.path(one[:-1]))
        else:
            bare.add(tree.path(one))
    for root in beside:
        (work_trees if os.path.lexists(f"{root}/{GIT_DIR}") else bare).add(root)
    work_trees.update(
        above for above in folders_above(tree.root) if os.path.lexists(f"{above}/{GIT_DIR}")
    )
    return (
        *(repository_of(one, read) for one in sorted(work_trees)),
        *(repository_in(one) for one in sorted(bare)),
    )


def read_from_disk(tree: ProtectedTree) -> ReadFile:
    """Return what reads a configuration as it lies there now."""

    def read(path: str) -> bytes | None:
        below = parts_below(tree.root, path)
        if below is None:
            return read_plain_file(path, MAX_KEPT_BYTES)
        if tree.rules.allows(below):
            return None
        try:
            return read_content(tree.root, below).data
        except OSError:
            return None

    return read


def config_files(tree: ProtectedTree, dirs: Iterable[Parts]) -> frozenset[Parts]:
    """Return the configuration files of these repositories, with those that they include."""
    own = frozenset((*one, name) for one in dirs for name in GIT_CONFIGS)
    every = {repository_in(tree.path(parts[:-1])) for parts in own}
    found = named_files(tree, every, read_from_disk(tree), own=False)
    # A configuration that is a link counts itself, beside what it leads to.
    return found | {parts for parts in own if not tree.rules.allows(parts)}


def named_files(
    tree: ProtectedTree, found: Iterable[GitRepository], read: ReadFile, *, own: bool = True
) -> frozenset[Parts]:
    """Return the configuration files below the root that these repositories obey.

    With `own`, also what the operator's own settings for all repositories include.
    """
    files: set[Parts] = set()
    for one in found:
        if len(files) < MAX_CONFIGS:
            below = (parts_below(tree.root, path) for path in _follow(one, read, own=own).files)
            files.update(parts for parts in below if parts and not tree.rules.allows(parts))
    return frozenset(files)


def hook_folders(
    tree: ProtectedTree, found: Iterable[GitRepository], read: ReadFile
) -> frozenset[Parts]:
    """Return the folders below the root that these repositories take their hooks from."""
    below = (
        parts_below(tree.root, path) for one in found for path in _follow(one, read, own=True).hooks
    )
    return frozenset(parts for parts in below if parts)


def _follow(one: GitRepository, read: ReadFile, *, own: bool) -> NamedByGit:
    home = os.path.expanduser("~")  # noqa: PTH111 - text
    further = operator_configs(os.environ, home) if own else ()
    return follow_configs(one, read, home=home, further=further)


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
