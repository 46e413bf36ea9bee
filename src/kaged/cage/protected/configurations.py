"""`GitConfigs`: git's configuration files, and the commands that guests put into them.

Of most files guests have copies, and what they write there is judged before it is published. What
has none, such as the file of a repository that a guest makes, is judged where it lies.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

from kaged.cage.protected.copies import LOCK, ConfigCopies, ConfigCopy
from kaged.cage.protected.files import Content, open_folder, put_content, read_content, swap_content
from kaged.cage.protected.findings import Findings, Sweep, TakenBack, could_not
from kaged.cage.protected.repositories import config_files
from kaged.cage.protected.tree import Parts, ProtectedTree, shown_path
from kaged.kernel.git_config import (
    MalformedGitConfig,
    new_commands,
    parse_git_config,
    take_back_commands,
)
from kaged.kernel.protected_paths import GIT_CONFIGS

LOCK_PATIENCE_S: Final = 20
"""So long sweeps wait for git to finish with a configuration file."""
MAX_SWAPS: Final = 5

_NONE: Final = Content(None, 0)
_WORKTREE_FILES: Final = "extensions.worktreeconfig"
_WHY: Final = "it had keys that run commands"


class GitConfigs:
    """The configuration files of a tree's repositories as the operator left them.

    `move_away` takes a file out of the tree, down to a number of names below its root.
    """

    def __init__(
        self,
        tree: ProtectedTree,
        move_away: Callable[[Parts, int], str | None],
        copies: ConfigCopies,
    ) -> None:
        self.contents: dict[Parts, Content] = {}
        self.copies = copies
        self._tree = tree
        self._move_away = move_away

    def rebase(self, files: Iterable[Parts]) -> None:
        """Take what lies in these files now for the operator's."""
        self.contents = {one: _read(self._tree, one) for one in files}

    def finish(self) -> None:
        """Finish what a daemon that was killed had begun to publish."""
        for parts, content in self.contents.items():
            lock = (*parts[:-1], f"{parts[-1]}{LOCK}")
            whole, now = _read(self._tree, lock).data, _read(self._tree, parts)
            if whole is None or now.data is None or not whole.startswith(now.data):
                continue
            if new_commands(whole, content.data or b"", len(parts) - 1) is None:
                with contextlib.suppress(OSError):
                    put_content(self._tree.root, parts, whole, now.mode)
                    with open_folder(self._tree.root, parts[:-1]) as folder:
                        os.unlink(lock[-1], dir_fd=folder)

    def sweep(
        self, dirs: frozenset[Parts], findings: Findings, how: Sweep, *, waited_s: float
    ) -> None:
        """Judge all of them; git has had something for so long by now."""
        patient = not how.final and waited_s < LOCK_PATIENCE_S
        first = {(*one, name) for one in dirs for name in GIT_CONFIGS} | self.contents.keys()
        copied = {
            parts
            for parts, copy in tuple(self.copies.known.items())
            if self._publish(copy, findings, how, patient=patient)
        }
        for parts in first - copied:
            self._judge(parts, findings, how, patient=patient)
        # Only now: what a planted include had named is nobody's configuration any more. Where one
        # is left in for a moment, what it names is left as well.
        if not findings.held:
            for parts in config_files(self._tree, dirs) - first - copied:
                self._judge(parts, findings, how, patient=patient)

    def _judge(self, parts: Parts, findings: Findings, how: Sweep, *, patient: bool) -> None:
        """Judge one configuration file and take back the commands that a guest put in."""
        tree = self._tree
        now = _NONE if tree.rules.allows(parts) else _read(tree, parts)
        if now is _NONE:
            return
        before = self.contents.get(parts, _NONE)
        old = before.data or b""
        keys: tuple[str, ...] | None
        if now.data is None:
            keys = None if now == before else ("unreadable",)
        else:
            keys = new_commands(now.data, old, len(parts) - 1)
        if keys is None:
            self.contents[parts] = now
            return
        if how.by_operator():
            self.contents[parts] = now
            findings.adopted += 1
            return
        lock = (*parts[:-1], f"{parts[-1]}{LOCK}")
        if patient and tree.signature(lock) is not None:
            findings.held = True
            return
        try:
            if now.data is None and before is _NONE:
                moved = self._move_away(parts, len(parts) - 1)
            else:
                mode = before.mode if before is not _NONE else now.mode
                clean = _clean(tree.root, parts, (now.data, old, len(parts) - 1), mode)
                # What lies there by now may be a guest's again: it is not read back.
                self.contents[parts] = Content(clean, mode)
                moved = None
        except OSError as error:
            findings.taken_back.append(could_not(shown_path(parts), error, keys))
            return
        findings.taken_back.append(TakenBack(shown_path(parts), _WHY, keys, moved))

    def _publish(self, copy: ConfigCopy, findings: Findings, how: Sweep, *, patient: bool) -> bool:
        """Publish what guests wrote to a copy; return whether the file needs no other look.

        It needs one where a guest could have written the file itself.
        """
        parts, tree = copy.parts, self._tree
        if not how.covered:
            self._judge(parts, findings, how, patient=patient)
        elif not self.copies.still_there(copy):
            # Somebody outside put another file in its place, and guests see that one from now on.
            del self.copies.known[parts]
            return False
        real = _read(tree, parts)
        if real.data is None:
            return False
        if not how.covered and real.data != self.contents.get(parts, _NONE).data:
            return True  # it was left to git for a moment, or was written again already
        try:
            if real.data != copy.synced:
                if how.covered:  # no guest reaches the file
                    self.contents[parts] = real
                    findings.adopted += 1
                self.copies.put(copy, real.data, real.mode)
                copy.synced = real.data
            else:
                self._take_over(copy, real, findings, how, patient=patient)
        except OSError as error:
            findings.taken_back.append(could_not(shown_path(parts), error))
        return True

    def _take_over(
        self, copy: ConfigCopy, real: Content, findings: Findings, how: Sweep, *, patient: bool
    ) -> None:
        """Judge a copy against the file, which is as it was. Raises OSError.

        What a guest may not publish stays in its copy, where it harms nobody, until the guest is
        done with it: git would lose what it writes at the same moment.
        """
        copies, before, climb = self.copies, copy.synced, len(copy.parts) - 1
        try:
            now = copies.read(copy).data
        except OSError:
            now = None
        if now == before:
            copy.refused = ()
            return
        if now is not None and now == copy.judged:
            # Git would lose what it writes while the copy is exchanged: only one that rests is.
            if not how.quick and copies.rests(copy):
                _clean(str(copies.folder), copy.place, (now, before, climb), real.mode)
            return
        keys = ("unreadable",) if now is None else new_commands(now, before, climb)
        if keys == ("unreadable",) and how.quick:
            return  # somebody may be in the middle of writing it
        if now is None:
            fit = before
            copies.put(copy, fit, real.mode)
        else:
            fit = now if keys is None else take_back_commands(now, before, climb)
        if keys is not None and keys != copy.refused:
            findings.taken_back.append(TakenBack(shown_path(copy.parts), _WHY, keys))
        copy.refused = keys or ()
        # One that makes git read further files, which have no copies, waits for the guests' end.
        opens_files = has_worktree_files(fit) and not has_worktree_files(before)
        if opens_files and not how.final:
            return
        if fit == before or copies.publish(copy, fit, by_force=not patient):
            self.contents[copy.parts] = Content(fit, real.mode)
            copy.judged = now


def _clean(root: str, parts: Parts, texts: tuple[bytes | None, bytes, int], mode: int) -> bytes:
    """Put a configuration in place without its new commands; return it. Raises OSError.

    The texts are the new and the old one, and how far a work tree may climb. Git may write the file
    at this moment. What was in its place is compared with what was read, and where it is something
    newer, that is what counts.
    """
    now, old, climb = texts
    if now is None:
        put_content(root, parts, old, mode)
        return old
    expected, clean = now, take_back_commands(now, old, climb)
    for _ in range(MAX_SWAPS):
        found = swap_content(root, parts, clean, mode)
        if found is None or found == expected:
            break
        expected = clean
        harmless = new_commands(found, old, climb) is None
        clean = found if harmless else take_back_commands(found, old, climb)
    return clean


def _read(tree: ProtectedTree, parts: Parts) -> Content:
    with contextlib.suppress(OSError):
        return read_content(tree.root, parts)
    return _NONE


def has_worktree_files(data: bytes) -> bool:
    """Return whether a configuration makes git read `config.worktree` files as well."""
    with contextlib.suppress(MalformedGitConfig):
        return any(one.key == _WORKTREE_FILES for one in parse_git_config(data))
    return False
