"""`ProtectedState`: what lay in the protected places of a tree, and the sweep that puts it back.

What is deleted stays deleted, for that plants nothing, and a content that the operator had in the
same place of any work tree may come back: so git checks out branches and work trees as ever.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kaged.base.file_stamp import SETTLED_NS
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.protected.configurations import GitConfigs, has_worktree_files
from kaged.cage.protected.copies import ConfigCopies
from kaged.cage.protected.files import (
    Content,
    forget_oldest,
    make_file,
    make_folder,
    move_away,
    put_content,
    read_content,
)
from kaged.cage.protected.findings import (
    FINAL,
    Findings,
    ReviewedChange,
    Sweep,
    TakenBack,
    could_not,
)
from kaged.cage.protected.memory import KeptTree, content_of, kept_files, this_process
from kaged.cage.protected.operator_record import OperatorRecord
from kaged.cage.protected.repositories import (
    config_files,
    git_dirs,
    hook_folders,
    in_flight,
    just_changed,
    named_files,
    parts_below,
    read_from_disk,
    repositories,
)
from kaged.cage.protected.stopped import StoppedOperations, describes_stopped
from kaged.cage.protected.tree import Inventory, Parts, Place, ProtectedTree, shown_path
from kaged.kernel.protected_list import PathClass
from kaged.kernel.protected_paths import (
    GIT_CONFIGS,
    GIT_DIR,
    HOOKS,
    WORKTREES,
)

MAX_KEPT_TOTAL: Final = 32 * 1024 * 1024
MAX_HOOK_MOUNTS: Final = 100
MAX_OWN_MOUNTS: Final = 20
MAX_LOOKS: Final = 50
MAX_MOVED: Final = 200
"""So many files of one sweep are kept where they are moved to; the others are only removed."""
MAX_KEPT_FILES: Final = 2_000
GIT_PATIENCE_S: Final = 300
"""So long sweeps wait for git to finish with the work tree, in a rebase for instance."""
GIT_PAUSE_NS: Final = 1_000_000_000
"""So long after git has ended, quick sweeps leave the work tree to whoever goes on with git."""
MAX_READ_AGAIN: Final = 64
"""So many files are read at every look, whatever their time stamps say."""


@dataclass(frozen=True, slots=True)
class _Saved:
    place: Place
    content: Content
    digest: str


class ProtectedState:
    """The protected places of one tree as the operator left them. Blocks on the disk."""

    def __init__(
        self,
        tree: ProtectedTree,
        kept_in: Path,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        copies_in: Path | None = None,
    ) -> None:
        self.tree = tree
        self._kept_in = kept_in
        self._monotonic = monotonic
        self._places: dict[Parts, _Saved] = {}
        self.copies = ConfigCopies(tree, copies_in or kept_in.with_name("git-configs"))
        self._configs = GitConfigs(tree, self._move_away, self.copies)
        self._stopped = StoppedOperations(tree, self._move_away)
        self._known_dirs: frozenset[Parts] = frozenset()
        self._beside: frozenset[str] = frozenset()
        self._shape: tuple[frozenset[Parts], tuple[Parts, ...]] = (frozenset(), ())
        """The repositories and `.git` files for which the folders of hooks were found."""
        self._made_by_guests: set[Parts] = set()
        self._record = OperatorRecord(kept_in / "operator", tree.root)
        self._held_since_s: float | None = None
        self._room = MAX_MOVED
        self._rebased_ns = 0
        self._partial = False
        """The operator has more protected files than are remembered."""
        self._lock = threading.Lock()  # a sweep goes on when nobody waits for it any more
        self.hook_dirs: tuple[Parts, ...] = ()
        """Folders of hooks that a cage is shown read-only, each as names below the root.

        One of a repository that a guest made is not among them: it must stay removable.
        """
        self.pinned: tuple[Parts, ...] = ()
        """Folders of the tree's own repository that no guest may move away."""
        self.own_dirs: tuple[Parts, ...] = ()
        """Other protected folders right below the root, for cages in which git writes none."""
        self.in_git = True
        """Whether git may write the work tree: there is a repository, or a file that names one."""

    def rebase(self, beside: Iterable[str] = ()) -> bool:
        """Take what lies there now for the operator's; return whether all of it was looked at.

        `beside` are other folders that the same guests can write. Only while no guest can write.
        """
        with self._lock:
            return self._rebase(frozenset(beside))

    def _rebase(self, beside: frozenset[str]) -> bool:
        tree = self.tree
        self._rebased_ns = time.time_ns()
        found = tree.look()
        dirs = git_dirs(tree, found)
        read = read_from_disk(tree)
        every = repositories(tree, found, dirs, beside, read)
        folders = hook_folders(tree, every, read)
        self._beside, self._shape = beside, (dirs, tuple(found.gitfiles))
        tree.take_hooks_from(folders)
        if any(folder not in found.git_dirs for folder in folders):
            found = tree.look()
        known, self._places = self._places, {}
        room = MAX_KEPT_TOTAL
        for parts, place in found.places.items():
            saved = known.get(parts)
            if saved is None or saved.place.signature != place.signature:
                saved = self._save(place)
            if saved is None:
                continue
            size = len(saved.content.data or b"")
            if size > room:
                saved = replace(saved, content=replace(saved.content, data=None))
                size = 0
            room -= size
            self._places[parts] = saved
            self._accept(saved)
        with contextlib.suppress(OSError):
            self._record.keep()
        self._configs.rebase(config_files(tree, dirs) | named_files(tree, every, read))
        self._stopped.rebase(dirs)
        self._known_dirs = dirs
        self._made_by_guests &= dirs
        self._note_hooks(dirs)
        self._note_copies(dirs)
        self._note_own(found)
        self.in_git = bool(dirs or found.gitfiles)
        self._partial = found.more
        return found.complete and not found.more

    def operator_had(self, parts: Parts, data: bytes) -> bool:
        """Return whether the operator had this content in a protected place of this name."""
        match = self.tree.rules.find(parts)
        if match is None:
            return False
        key = "/".join(parts[match.depth - 1 :])
        # Undo keeps the mode that a file has by now.
        digests = (_digest_of(data, stat.S_IFREG | mode) for mode in (0, 0o100, 0o111))
        with self._lock:
            return any(self._record.has(key, one) for one in digests)

    def kept(self) -> KeptTree:
        """Return what is to be remembered beyond this daemon's life."""
        with self._lock:
            files = [
                *((_text(one), "", content) for one, content in self._configs.contents.items()),
                *((_text(one), "", content) for one, content in self._stopped.contents.items()),
                *((_text(one), saved.digest, saved.content) for one, saved in self._places.items()),
            ]
        return KeptTree(self.tree.root, this_process(), kept_files(files))

    def recover(self, kept: KeptTree) -> Findings:
        """Put a tree in order whose guests ended with the daemon that watched them."""
        with self._lock:
            for file in kept.files:
                parts, content = _parts(file.path), content_of(file)
                if file.digest:
                    place = Place(parts, PathClass.RUN, parts[-1], "", ())
                    self._places[parts] = _Saved(place, content, file.digest)
                elif describes_stopped(parts):
                    self._stopped.contents[parts] = content
                else:
                    self._configs.contents[parts] = content
            self._configs.finish()
            findings, tree = Findings(), self.tree
            dirs = git_dirs(tree, tree.look())
            self._configs.sweep(dirs, findings, FINAL, waited_s=0.0)
            # Only now the configuration says again where the operator's hooks lie.
            self._note_hook_folders(tree.look(), dirs)
            findings.add(self._sweep_all(FINAL))
        return findings

    def sweep(self, how: Sweep) -> Findings:
        """Put back what guests wrote."""
        with self._lock:
            return self._sweep_all(how)

    def _sweep_all(self, how: Sweep) -> Findings:
        """Sweep until nothing is left: one look takes in only so many files."""
        self._room = MAX_MOVED
        findings = Findings()
        for _ in range(MAX_LOOKS):
            found, more = self._sweep(how)
            findings.add(found)
            if not more or not found.taken_back:
                break
        else:
            findings.complete = False
        if self._room < MAX_MOVED:
            with contextlib.suppress(OSError):
                forget_oldest(self._kept_in, MAX_KEPT_FILES)
        return findings

    def _sweep(self, how: Sweep) -> tuple[Findings, bool]:
        tree = self.tree
        found = tree.look()
        dirs = git_dirs(tree, found)
        findings = Findings(complete=found.complete)
        waits = (not how.final and self._waited_s() < GIT_PATIENCE_S and in_flight(tree, dirs)) or (
            how.quick and just_changed(tree, dirs, GIT_PAUSE_NS)
        )
        self._configs.sweep(dirs, findings, how, waited_s=self._waited_s())
        self._stopped.sweep(dirs, findings, how)
        if self._shape != (dirs, tuple(found.gitfiles)) and self._note_hook_folders(found, dirs):
            found = tree.look()
        self._sweep_places(found, findings, how, waits=waits)
        if not how.quick:
            for parts in self._places.keys() - found.places.keys():
                saved = self._places.pop(parts)
                why = f"removed; {saved.place.why}"
                findings.changed.append(ReviewedChange(shown_path(parts), why))
        if not findings.held and not how.quick:
            self._held_since_s = None
        elif findings.held and self._held_since_s is None:
            self._held_since_s = self._monotonic()
        self._made_by_guests |= dirs - self._known_dirs
        self._note_hooks(dirs)
        return findings, found.more

    def _note_hook_folders(self, found: Inventory, dirs: frozenset[Parts]) -> bool:
        """Find the folders of hooks of work trees that are new; return whether there are any.

        Only what the operator's configuration names counts: a guest that names a folder for hooks
        must not make us move away what lies there.
        """
        tree, contents = self.tree, self._configs.contents
        outside = read_from_disk(tree)

        def read(path: str) -> bytes | None:
            below = parts_below(tree.root, path)
            if below is None or below[-1:] in {(GIT_DIR,), ("commondir",)}:
                return outside(path)
            return contents[below].data if below in contents else None

        self._shape = (dirs, tuple(found.gitfiles))
        folders = hook_folders(tree, repositories(tree, found, dirs, self._beside, read), read)
        new = folders - tree.hook_folders
        tree.take_hooks_from(tree.hook_folders | folders)
        return bool(new)

    def _waited_s(self) -> float:
        """Return for how long something has been left to git."""
        since_s = self._held_since_s
        return 0.0 if since_s is None else self._monotonic() - since_s

    def _sweep_places(
        self, found: Inventory, findings: Findings, how: Sweep, *, waits: bool
    ) -> None:
        reads_all = not how.quick and len(found.places) - found.reviewed <= MAX_READ_AGAIN
        for parts, place in found.places.items():
            saved = self._places.get(parts)
            if how.quick and self._can_wait(place, saved):
                continue
            if saved is not None and self._is_the_same(place, saved, reads_all=reads_all):
                continue
            now = self._save(place)
            if now is None:
                continue
            if saved is not None and saved.digest == now.digest:
                self._places[parts] = replace(saved, place=now.place)
            elif self._lies_in_closed(now, how.closed) or (
                self._refused(place) and how.by_operator()
            ):
                self._places[parts] = now  # no guest can have written it
                self._accept(now)
                findings.adopted += 1
            elif not self._refused(place):
                self._places[parts] = now
                findings.changed.append(ReviewedChange(shown_path(parts), place.why))
            elif self._record.has(place.key, now.digest) or (
                # Not remembered, but not touched since either.
                self._partial and saved is None and place.signature[-1] < self._rebased_ns
            ):
                self._places[parts] = now
            elif waits and place.checked_out:
                findings.held = True
            else:
                findings.taken_back.append(self._take_back(place, saved))

    def _refused(self, place: Place) -> bool:
        return place.kind is not PathClass.REVIEWED or self.tree.rules.refuse_reviewed

    def _can_wait(self, place: Place, saved: _Saved | None) -> bool:
        """Return whether a file is left to the next full sweep: it is named only, or still empty.

        Whoever writes a new file has made it, empty, a moment before.
        """
        mode, size = place.signature[0], place.signature[3]
        return not self._refused(place) or (saved is None and size == 0 and stat.S_ISREG(mode))

    def _is_the_same(self, place: Place, saved: _Saved, *, reads_all: bool) -> bool:
        """Return whether a file can be taken for what it was without reading it.

        A file that is mapped into memory changes without a new time stamp. So what was touched
        since the guests began is read every time, and where the files are few all of them.
        """
        if saved.place.signature != place.signature:
            return False
        return not self._refused(place) or not (
            reads_all or place.signature[-1] >= self._rebased_ns - SETTLED_NS
        )

    def _take_back(self, place: Place, saved: _Saved | None) -> TakenBack:
        root, parts = self.tree.root, place.parts
        path = shown_path(parts)
        try:
            if saved is not None and saved.content.data is not None:
                put_content(root, parts, saved.content.data, saved.content.mode)
                self._places[parts] = replace(saved, place=replace(saved.place, signature=()))
                return TakenBack(path, f"it was changed; {place.why}")
            floor = len(parts) - place.key.count("/") - 1
            moved = self._move_away(parts, floor)
            self._places.pop(parts, None)
        except OSError as error:
            return could_not(shown_path(parts), error)
        reason = "it was not there before" if saved is None else "it was changed"
        return TakenBack(path, f"{reason}; {place.why}", moved_to=moved)

    def _move_away(self, parts: Parts, floor: int) -> str | None:
        kept_in = self._kept_in if self._room > 0 else None
        self._room -= 1
        moved = move_away(self.tree.root, parts, floor, kept_in)
        return None if moved is None else str(moved)

    def _save(self, place: Place) -> _Saved | None:
        settled = place.settled()  # asked before it is read
        try:
            content = read_content(self.tree.root, place.parts)
        except OSError:
            return None
        return _Saved(settled, content, _digest(content, place))

    def _lies_in_closed(self, now: _Saved, closed: Mapping[Parts, int]) -> bool:
        """Return whether a folder that no guest can write to holds this very content.

        A guest can move what is above such a folder, and put another one in its place. So it is
        not the path that counts but the folder itself, which was opened when it was mounted.
        """
        parts = now.place.parts
        for folder, fd in closed.items():
            if parts[: len(folder)] == folder:
                with contextlib.suppress(OSError):
                    found = read_content(f"/proc/self/fd/{fd}/.", parts[len(folder) :])
                    return _digest(found, now.place) == now.digest
        return False

    def _accept(self, saved: _Saved) -> None:
        if self._refused(saved.place):
            self._record.add(saved.place.key, saved.digest)

    def _note_hooks(self, dirs: frozenset[Parts]) -> None:
        folders: list[Parts] = []
        for one in self._shut(dirs)[:MAX_HOOK_MOUNTS]:
            parts = (*one, HOOKS)
            if self.tree.rules.allows(parts):
                continue
            signature = self.tree.signature(parts)
            if signature is None:
                there = make_folder(self.tree.root, parts)
            else:
                there = stat.S_ISDIR(signature[0])
            if there:
                folders.append(parts)
        self.hook_dirs = tuple(folders)

    def _note_copies(self, dirs: frozenset[Parts]) -> None:
        """Copy the configuration of repositories, and pin the folders that lead to it.

        Not what lies in the work tree or belongs to a linked work tree: git removes these itself,
        and would stop half-way at a mount.
        """
        shut = self._shut(dirs)
        inner = [
            parts
            for parts in config_files(self.tree, shut)
            if any(parts[: len(one)] == one and WORKTREES not in parts[len(one) :] for one in shut)
        ]
        for parts in inner:
            if self.tree.signature(parts) is None and self._is_read(parts):
                make_file(self.tree.root, parts)
        self.copies.rebase(inner)
        self.pinned = tuple(
            sorted(
                {
                    parts[:size]
                    for parts in self.copies.known
                    if parts[0] == GIT_DIR
                    for size in range(1, len(parts))
                }
            )
        )

    def _is_read(self, parts: Parts) -> bool:
        """Return whether git would read a file that is missing, if a guest made it."""
        shared, own = GIT_CONFIGS
        if parts[-1] == shared:
            return False
        config = self._configs.contents.get((*parts[:-1], shared))
        return parts[-1] != own or (config is not None and has_worktree_files(config.data or b""))

    def _shut(self, dirs: frozenset[Parts]) -> list[Parts]:
        """Return the repositories that are the operator's, the nearest to the root first.

        A folder without a HEAD is none any more: a guest that removes one is stopped once only.
        """
        mine = [
            one
            for one in dirs - self._made_by_guests
            if WORKTREES not in one and self.tree.signature((*one, "HEAD")) is not None
        ]
        return sorted(mine, key=lambda parts: (len(parts), parts))

    def _note_own(self, found: Inventory) -> None:
        """Note the folders at the root whose every file is refused."""
        names = {
            one.parts[0]
            for one in found.places.values()
            if one.kind is PathClass.RUN and one.checked_out and one.key == "/".join(one.parts)
        }
        names -= {one[0] for one in self.tree.rules.allowed if one}
        folders = [(name,) for name in sorted(names)]
        signatures = ((one, self.tree.signature(one)) for one in folders[:MAX_OWN_MOUNTS])
        self.own_dirs = tuple(one for one, found in signatures if found and stat.S_ISDIR(found[0]))


def _digest(content: Content, place: Place) -> str:
    said = content.data if content.data is not None else repr(place.signature).encode()
    if content.link is not None:
        said = content.link.encode(errors="surrogateescape")
    return _digest_of(said, content.mode)


def _digest_of(said: bytes, mode: int) -> str:
    # Whether it can be run is part of what it is.
    kind = f"{stat.S_IFMT(mode):o} {mode & 0o111:o} ".encode()
    return hashlib.sha256(kind + said).hexdigest()


def _text(parts: Parts) -> str:
    """Write a path so that every byte of it can be stored."""
    return os.fsencode("/".join(parts)).decode("latin-1")


def _parts(text: str) -> Parts:
    return tuple(os.fsdecode(text.encode("latin-1")).split("/"))
