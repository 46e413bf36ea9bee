"""What git's configuration names: files that it includes, folders that hooks come from. Pure.

Git obeys more than `.git/config`: what that includes, `config.worktree`, the repository that a
`.git` file points to, and the repository of a folder above. `read` gives the content of a file by
its path, or None where there is no plain file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.git_config import MalformedGitConfig, parse_git_config
from kaged.kernel.protected_paths import GIT_CONFIGS, GIT_DIR

MAX_FOLLOWED: Final = 512
MAX_POINTER_BYTES: Final = 4096
_GITDIR: Final = b"gitdir:"

ReadFile: TypeAlias = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class GitRepository:
    """A work tree, or a bare repository, and the configuration that git reads for it."""

    work_tree: str
    configs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamedByGit:
    """All configuration files, with the included ones, and the folders that hooks come from.

    Paths are as they are written, made absolute: links in them are not followed yet.
    """

    files: tuple[str, ...]
    hooks: tuple[str, ...]


def repository_of(work_tree: str, read: ReadFile) -> GitRepository:
    """Return the repository of a folder with a `.git`, which may be a file that points to it."""
    place = posixpath.join(work_tree, GIT_DIR)
    git_dir = read_pointer(place, _GITDIR, read) or place
    common = read_pointer(posixpath.join(git_dir, "commondir"), b"", read) or git_dir
    shared, own = GIT_CONFIGS
    return GitRepository(work_tree, (posixpath.join(common, shared), posixpath.join(git_dir, own)))


def repository_in(git_dir: str) -> GitRepository:
    """Return the repository that a folder is, without a work tree around it."""
    return GitRepository(git_dir, tuple(posixpath.join(git_dir, name) for name in GIT_CONFIGS))


def read_pointer(path: str, word: bytes, read: ReadFile) -> str | None:
    """Return the path that a file of one line names, made absolute, or None."""
    data = (read(path) or b"")[:MAX_POINTER_BYTES]
    if not data.startswith(word):
        return None
    target = data[len(word) :].strip().decode("utf-8", "surrogateescape")
    if not target or "\0" in target:
        return None
    return posixpath.join(posixpath.dirname(path), target)


def follow_configs(
    repository: GitRepository, read: ReadFile, *, home: str, further: Sequence[str] = ()
) -> NamedByGit:
    """Return what a repository's configuration names; `further` files are the operator's own.

    Every condition of an include counts as met, and of several folders for hooks each: which of
    them git takes depends on where and how it is called.
    """
    files: dict[str, None] = {}
    hooks: dict[str, None] = {}
    waiting = [*further, *repository.configs]
    while waiting and len(files) < MAX_FOLLOWED:
        path = waiting.pop()
        if path in files:
            continue
        files[path] = None
        included, folders = _names(read(path) or b"")
        for value in folders:
            hooks.update(_placed(repository.work_tree, value, home))
        for value in included:
            waiting += _placed(posixpath.dirname(path), value, home)
    return NamedByGit(tuple(files), tuple(hooks))


@lru_cache(maxsize=256)
def _names(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files and the folders of hooks that one text names, as it writes them."""
    try:
        settings = parse_git_config(data)
    except MalformedGitConfig:
        return (), ()
    return (
        tuple(
            one.value or ""
            for one in settings
            if one.key.startswith(("include.", "includeif.")) and one.key.endswith(".path")
        ),
        tuple(one.value or "" for one in settings if one.key == "core.hookspath"),
    )


def operator_configs(environ: Mapping[str, str], home: str) -> tuple[str, ...]:
    """Return the files of settings that git reads for every repository of a person."""
    folder = environ.get("XDG_CONFIG_HOME") or posixpath.join(home, ".config")
    own = (posixpath.join(home, ".gitconfig"), posixpath.join(folder, "git", "config"))
    return ("/etc/gitconfig", *own)


def folders_above(path: str) -> Iterable[str]:
    """Return the folders that a path lies in, the nearest first."""
    while (above := posixpath.dirname(path)) != path:
        yield above
        path = above


def _placed(base: str, value: str, home: str) -> dict[str, None]:
    # Read as Latin-1 so that every byte keeps its place; the file system knows it by its bytes.
    text = value.encode("latin-1").decode("utf-8", "surrogateescape")
    if not text or "\0" in text:
        return {}
    if text == "~" or text.startswith("~/"):
        text = posixpath.join(home, text[2:])
    return {posixpath.join(base, text): None}
