"""`GitConfigs`: git's configuration files, and the commands that guests put into them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from kaged.cage.protected.files import Content, put_content, read_content, swap_content
from kaged.cage.protected.findings import Findings, Sweep, TakenBack, could_not
from kaged.cage.protected.repositories import config_files
from kaged.cage.protected.tree import Parts, ProtectedTree, shown_path
from kaged.kernel.git_config import new_commands, take_back_commands
from kaged.kernel.protected_paths import GIT_CONFIGS

LOCK_PATIENCE_S: Final = 20
"""So long sweeps wait for git to finish with a configuration file."""
MAX_SWAPS: Final = 5

_NONE: Final = Content(None, 0)


class GitConfigs:
    """The configuration files of a tree's repositories as the operator left them.

    `move_away` takes a file out of the tree, down to a number of names below its root.
    """

    def __init__(self, tree: ProtectedTree, move_away: Callable[[Parts, int], str | None]) -> None:
        self.contents: dict[Parts, Content] = {}
        self._tree = tree
        self._move_away = move_away

    def rebase(self, dirs: Iterable[Parts]) -> None:
        """Take what lies there now for the operator's."""
        self.contents = {one: _read(self._tree, one) for one in config_files(self._tree, dirs)}

    def sweep(
        self, dirs: frozenset[Parts], findings: Findings, how: Sweep, *, waited_s: float
    ) -> None:
        """Judge all of them; git has had something for so long by now."""
        patient = not how.final and waited_s < LOCK_PATIENCE_S
        first = {(*one, name) for one in dirs for name in GIT_CONFIGS} | self.contents.keys()
        for parts in first:
            self._judge(parts, findings, how, patient=patient)
        # Only now: what a planted include had named is nobody's configuration any more. Where one
        # is left in for a moment, what it names is left as well.
        if not findings.held:
            for parts in config_files(self._tree, dirs) - first:
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
        lock = (*parts[:-1], f"{parts[-1]}.lock")
        if patient and tree.signature(lock) is not None:
            findings.held = True
            return
        try:
            if now.data is None and before is _NONE:
                moved = self._move_away(parts, len(parts) - 1)
            else:
                mode = before.mode if before is not _NONE else now.mode
                clean = self._clean(parts, now.data, old, mode)
                # What lies there by now may be a guest's again: it is not read back.
                self.contents[parts] = Content(clean, mode)
                moved = None
        except OSError as error:
            findings.taken_back.append(could_not(shown_path(parts), error, keys))
            return
        reason = "it had keys that run commands"
        findings.taken_back.append(TakenBack(shown_path(parts), reason, keys, moved))

    def _clean(self, parts: Parts, now: bytes | None, old: bytes, mode: int) -> bytes:
        """Put a configuration in place without its new commands; return it. Raises OSError.

        Git may write it at this moment. What was in its place is compared with what was read, and
        where it is something newer, that is what counts.
        """
        root, climb = self._tree.root, len(parts) - 1
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
