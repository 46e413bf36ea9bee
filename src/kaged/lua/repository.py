"""`Repository`: what of a workdir's git an exec cage may write, and what stays as it is.

The operator's own git runs hooks, and commands that configuration names, later and outside every
cage. Every cage is kept from these as protected paths (`kaged.kernel.protected_paths`). Scripts
get less than agents: configuration is read-only inside, `.git` is a mount of its own that can be
neither renamed nor replaced, and what cannot be held that way is put right afterwards.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsGrant, FsMode
from kaged.kernel.protected_paths import GIT_CONFIGS
from kaged.lua.gitsettings import read_settings

MAX_POINTER_BYTES: Final = 4096
_ASIDE: Final = ".git-made-by-a-script"


@dataclass(frozen=True, slots=True)
class Repository:
    """A workdir's git directory as an exec cage is shown it.

    `linked` is the directory that a `.git` file names and that names the workdir back, found once;
    None when `.git` is a directory, or is nothing of ours.
    """

    root: str
    linked: str | None = None
    common: str | None = None

    @classmethod
    def find(cls, root: str) -> Repository:
        """Look at a workdir when its project is loaded."""
        pointer = Path(root, ".git")
        if not pointer.is_file() or pointer.is_symlink():
            return cls(root)
        target = _pointer(pointer, "gitdir:")
        if target is None:
            return cls(root)
        git_dir = os.path.realpath(Path(root, target))
        common = _pointer(Path(git_dir, "commondir"))
        if common is not None:
            shared = os.path.realpath(Path(git_dir, common))
            back = _pointer(Path(git_dir, "gitdir"))
            inside = str(Path(git_dir).parent) == f"{shared}/worktrees"
            if inside and back is not None and _same(Path(git_dir, back), pointer):
                return cls(root, git_dir, shared)
            return cls(root)
        worktree = dict(read_settings(Path(git_dir, "config"))).get("core.worktree")
        if worktree is not None and _same(Path(git_dir, worktree), Path(root)):
            return cls(root, git_dir, git_dir)
        return cls(root)

    def grants(self) -> tuple[FsGrant, ...]:
        """Return the paths an exec cage is shown beside the workdir, as they are now."""
        pointer = Path(self.root, ".git")
        if self.linked is not None and self.common is not None:
            found = [FsGrant(str(pointer), FsMode.RO), FsGrant(self.common, FsMode.RW)]
            found += _held(Path(self.common))
            if self.linked != self.common:
                found.append(FsGrant(self.linked, FsMode.RW))
                found += _existing(Path(self.linked), "commondir", "gitdir", "config.worktree")
            return tuple(found)
        if pointer.is_symlink():
            return ()
        if pointer.is_dir():
            return (FsGrant(str(pointer), FsMode.RW), *_held(pointer))
        return (FsGrant(str(pointer), FsMode.RO),) if pointer.is_file() else ()

    @property
    def safe(self) -> tuple[str, ...]:
        """Which directories git may trust inside."""
        own = (self.root, f"{self.root}/.git")
        return own if self.linked is None else (*own, self.linked, str(self.common))

    def before(self) -> frozenset[str]:
        """Note what must not appear."""
        return frozenset(one for one in self._watched() if os.path.lexists(one))

    def after(self, before: frozenset[str]) -> list[str]:
        """Remove what appeared and would lead the operator's git elsewhere; returns what it was."""
        undone: list[str] = []
        for path in self._watched():
            if path in before or not os.path.lexists(path):
                continue
            with contextlib.suppress(OSError):
                if path.endswith("/.git"):
                    _move_aside(path)
                else:
                    Path(path).unlink()
                undone.append(path)
        return undone

    def _watched(self) -> tuple[str, ...]:
        if self.linked is not None:
            return (f"{self.linked}/config.worktree", f"{self.common}/config.worktree")
        git_dir = f"{self.root}/.git"
        return (git_dir, f"{git_dir}/commondir", f"{git_dir}/config.worktree")


def _held(git_dir: Path) -> list[FsGrant]:
    """Return what of a git directory is read-only for scripts: configuration, other work trees.

    Hooks, hook folders and included files are protected paths, which every cage is kept from.
    """
    return _existing(git_dir, *GIT_CONFIGS, "worktrees", "modules")


def _existing(folder: Path, *names: str) -> list[FsGrant]:
    return [
        FsGrant(str(folder / name), FsMode.RO)
        for name in names
        if (folder / name).exists() and not (folder / name).is_symlink()
    ]


def _pointer(path: Path, word: str = "") -> str | None:
    try:
        with path.open("rb") as file:
            text = os.fsdecode(file.read(MAX_POINTER_BYTES))
    except OSError:
        return None
    text = text.strip()
    if not text.startswith(word) or "\n" in text or "\0" in text:
        return None
    return text.removeprefix(word).strip() or None


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _move_aside(path: str) -> None:
    folder = str(Path(path).parent)
    for number in range(1000):
        aside = f"{folder}/{_ASIDE}-{number}"
        if not os.path.lexists(aside):
            Path(path).rename(aside)
            return
