"""`ProtectedGuard`: protected paths around, and during, the life of every cage that can write.

Cages over one tree share its state: what was there before the first of them began is the
operator's, and stays so until the last has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage.protected.activity import Activity, read_activity
from kaged.cage.protected.copies import CoverLink, FolderId
from kaged.cage.protected.files import open_folder
from kaged.cage.protected.findings import Findings, Sweep
from kaged.cage.protected.granted import names_above
from kaged.cage.protected.memory import TreeMemory
from kaged.cage.protected.sweep import ProtectedState
from kaged.cage.protected.tree import Parts, ProtectedTree
from kaged.cage.protected.watching import LookTimer, TreeWatch, Urgency
from kaged.kernel.protected_paths import ProtectedRules

SWEEP_EVERY_S: Final = 1.0
SWEEP_SHARE: Final = 20  # at most this part of the time is spent sweeping
WATCH_AFTER_S: Final = 0.05
"""A cage that ends before is looked at once, at its end, and costs no watches."""
MAX_TREES: Final = 64
MAX_EVENTS: Final = 50
KEPT_FOLDER: Final = "taken-back"
COPIES_FOLDER: Final = "git-configs"

_log = get_logger("kaged.cage")


@dataclass(eq=False, slots=True)
class Watch:
    """One cage's part in the guard; `findings` is what was found while it ran."""

    name: str
    trees: tuple[_GuardedTree, ...]
    closed: dict[str, dict[Parts, FolderId]]
    """Folders that it is shown read-only, by tree."""
    findings: Findings = field(default_factory=Findings)
    cage_id: str = ""
    first_pid: int = 0
    """The cage's first process, by the host's number; 0 while it starts."""
    links: tuple[CoverLink, ...] = ()
    """What is to be mounted over the configuration files that it could write."""
    pinned: tuple[str, ...] = ()
    """Folders that are to be mounted onto themselves, so that it cannot move them."""
    covered: bool = True
    """Whether the links are in place, as far as the cage runs."""

    def mounted(self, shown: Mapping[str, FolderId]) -> None:
        """Take note of what was really mounted, which another guest may have swapped meanwhile."""
        for tree in self.trees:
            self.closed[tree.root] = {
                parts: one
                for parts, one in self.closed[tree.root].items()
                if shown.get(tree.state.tree.path(parts)) == one
            }

    @property
    def copies(self) -> tuple[tuple[str, str], ...]:
        """The folders of copies that this cage is shown, and where."""
        if not self.links:
            return ()
        every = (tree.state.copies for tree in self.trees)
        return tuple((str(one.folder), one.inside) for one in every if one.known)

    @property
    def read_only(self) -> tuple[str, ...]:
        """The folders that this cage is to be shown read-only."""
        return tuple(
            tree.state.tree.path(parts)
            for tree in self.trees
            for parts in sorted(self.closed[tree.root])
        )


class _GuardedTree:
    def __init__(self, state: ProtectedState) -> None:
        self.state = state
        self.root = state.tree.root
        self.lock = asyncio.Lock()
        self.watches: list[Watch] = []
        self.unwatched = False  # it was said that the tree is too large
        self.resting: tuple[Activity, ...] | None = None
        """The guests' activity before the last look that left nothing open."""
        self.task: asyncio.Task[None] | None = None

        self._held: dict[FolderId, int] = {}

    def hold(self, parts: Parts) -> FolderId | None:
        """Keep a folder open, so that it is known again wherever it is moved to."""
        try:
            with open_folder(self.root, parts) as fd:
                entry = os.fstat(fd)
                found = (entry.st_dev, entry.st_ino)
                if found not in self._held:
                    self._held[found] = os.dup(fd)
        except OSError:
            return None
        return found

    def let_go(self) -> None:
        """Close what is kept open. Safe to call twice."""
        while self._held:
            os.close(self._held.popitem()[1])

    @property
    def covered(self) -> bool:
        """Whether every guest has copies of the configuration files that have some."""
        return all(watch.covered for watch in self.watches)

    @property
    def closed(self) -> dict[Parts, int]:
        """The open folders that no running cage can write to."""
        shown = [set(watch.closed.get(self.root, {}).items()) for watch in self.watches]
        common = set.intersection(*shown) if shown else set[tuple[Parts, FolderId]]()
        return {parts: self._held[one] for parts, one in common if one in self._held}


class ProtectedGuard:
    """Knows every tree that a running cage can write to. Lives on the event loop."""

    def __init__(
        self,
        rules_of: Callable[[str], ProtectedRules],
        kept_in: Path,
        copies_in: Path,
        on_event: Callable[[str, JsonObject], None],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._rules_of = rules_of
        self._kept_in = kept_in / KEPT_FOLDER
        self._copies_in = copies_in / COPIES_FOLDER
        self._on_event = on_event
        self._clock = clock
        self._tasks = tasks
        self._trees: dict[str, _GuardedTree] = {}
        self._memory = TreeMemory(kept_in / KEPT_FOLDER / "running")

    def recover(self) -> None:
        """Put in order what the guests of a daemon that was killed had written. Blocks."""
        for kept in self._memory.left():
            tree = self._tree(kept.root)
            self._report(tree, tree.state.recover(kept), "a cage of an earlier daemon")

    def operator_had(self, root: str, path: str, data: bytes) -> bool:
        """Return whether the operator had a content at a protected path of a tree. Blocks."""
        return self._tree(root).state.operator_had(tuple(path.split("/")), data)

    async def enter(
        self,
        name: str,
        roots: Iterable[str],
        *,
        git: bool = True,
        writable: Callable[[str], bool] = bool,
    ) -> Watch:
        """Remember what lies in the protected places of these trees, before a cage can write.

        `writable` tells of a path below them whether this cage is to write there. Where git writes
        nothing, because there is no repository or the cage has no `git`, the project's protected
        folders are closed as its folders of hooks are.
        """
        watch = Watch(name, tuple(self._tree(root) for root in roots), {})
        entered: list[_GuardedTree] = []
        try:
            for tree in watch.trees:
                async with tree.lock:
                    if tree.watches:
                        await self._sweep(tree)
                    elif not await asyncio.to_thread(self._begin, tree, watch):
                        watch.findings.complete = False
                    state = tree.state
                    own = () if git and state.in_git else state.own_dirs
                    held = {one: tree.hold(one) for one in (*state.hook_dirs, *own)}
                    watch.closed[tree.root] = {
                        parts: one for parts, one in held.items() if one is not None
                    }
                    links = state.copies.links()
                    watch.links += tuple(
                        one for one in links if writable(f"{one.folder}/{one.name}")
                    )
                    pinned = (state.tree.path(parts) for parts in state.pinned)
                    watch.pinned += tuple(one for one in pinned if writable(one))
                    tree.watches.append(watch)
                    entered.append(tree)
                if tree.task is None:
                    tree.task = self._tasks.start(self._keep_sweeping(tree), "protected paths")
        except BaseException:
            for tree in entered:
                self._forget(tree, watch)
            raise
        return watch

    async def leave(self, watch: Watch) -> Findings:
        """Put back what the cage wrote, now that it has ended; return all that was found."""
        for tree in watch.trees:
            async with tree.lock:
                try:
                    # With others still at work, their git is let finish what it is about.
                    alone = len(tree.watches) == 1
                    await self._sweep(tree, final=alone)
                finally:
                    self._forget(tree, watch)
        return watch.findings

    def forget(self, watch: Watch) -> None:
        """Take back `enter` for a cage that never started."""
        for tree in watch.trees:
            self._forget(tree, watch)

    def _begin(self, tree: _GuardedTree, watch: Watch) -> bool:
        tree.resting = None
        complete = tree.state.rebase(one.root for one in watch.trees if one is not tree)
        self._memory.keep(tree.state.kept())
        return complete

    def _tree(self, root: str) -> _GuardedTree:
        known = self._trees.get(root)
        if known is None:
            idle = [root for root, one in self._trees.items() if not one.watches]
            for old in idle[: max(len(self._trees) - MAX_TREES, 0)]:
                del self._trees[old]
            tree = ProtectedTree(root, self._rules_of(root).below(names_above(root)))
            state = ProtectedState(tree, self._kept_in, copies_in=self._copies_in)
            known = self._trees[root] = _GuardedTree(state)
        return known

    def _forget(self, tree: _GuardedTree, watch: Watch) -> None:
        if watch in tree.watches:
            tree.watches.remove(watch)
            if not tree.watches:
                self._memory.forget(tree.root)
                tree.state.copies.remove()
                tree.let_go()
        if not tree.watches and tree.task is not None:
            tree.task.cancel()
            tree.task = None

    async def _keep_sweeping(self, tree: _GuardedTree) -> None:
        await asyncio.sleep(WATCH_AFTER_S)
        watch = TreeWatch.open(tree.state.tree)
        if watch is not None:
            watch.add_copies(tree.state.copies.folders())
        timer = LookTimer(watch)
        loop = asyncio.get_running_loop()
        full_s = loop.time() + SWEEP_EVERY_S
        try:
            while True:
                early = await timer.wait(full_s)
                async with tree.lock:
                    started_s = loop.time()
                    await self._sweep(tree, quick=early)
                    # What lay in a folder before it was watched, nobody was told of.
                    if watch is not None and await asyncio.to_thread(watch.follow):
                        timer.ask(Urgency.NOW)
                took_s = loop.time() - started_s
                timer.looked(took_s)
                if not early:
                    full_s = loop.time() + max(SWEEP_EVERY_S, took_s * SWEEP_SHARE)
        finally:
            timer.close()

    async def _sweep(self, tree: _GuardedTree, *, final: bool = False, quick: bool = False) -> None:
        # Whoever waits may be cancelled; what was taken back goes on record all the same.
        work = self._tasks.start(self._sweep_now(tree, final=final, quick=quick), "sweep")
        await asyncio.shield(work)

    def _sweep_tree(self, tree: _GuardedTree, how: Sweep, pids: tuple[int, ...]) -> Findings:
        """Sweep, and tell the operator's own changes from those of guests. Blocks."""
        before = tree.resting
        resting = None if how.final or how.quick else _activities(pids)
        found = tree.state.sweep(
            replace(how, by_operator=lambda: before is not None and _activities(pids) == before)
        )
        if not how.quick:
            open_ends = (
                found.held or not found.complete or any(one.failed for one in found.taken_back)
            )
            tree.resting = None if open_ends else resting
        if found.adopted:
            self._memory.keep(tree.state.kept())
        return found

    async def _sweep_now(self, tree: _GuardedTree, *, final: bool, quick: bool) -> None:
        how = Sweep(final=final, quick=quick, closed=tree.closed, covered=tree.covered)
        pids = tuple(watch.first_pid for watch in tree.watches)
        try:
            found = await asyncio.to_thread(self._sweep_tree, tree, how, pids)
        # Boundary: whatever goes wrong must not keep a cage's end from being reported.
        except Exception as error:  # noqa: BLE001 - see above
            _log.error("cage.protected_sweep_failed", root=tree.root, error=repr(error))
            return
        self._report(tree, found)

    def _report(self, tree: _GuardedTree, found: Findings, who: str = "") -> None:
        names = who or ", ".join(sorted({watch.name for watch in tree.watches}))[:200]
        cages = {watch.cage_id for watch in tree.watches if watch.cage_id}
        base: JsonObject = {"who": names or "unknown"}
        if len(cages) == 1:
            base["cage_id"] = next(iter(cages))
        for one in found.taken_back[:MAX_EVENTS]:
            keys: list[JsonValue] = list(one.keys)
            data: JsonObject = {**base, "path": f"{tree.root}/{one.path}", "reason": one.reason}
            if one.moved_to is not None:
                data["moved_to"] = one.moved_to
            if keys:
                data["keys"] = keys
            self._on_event("protected_path.taken_back", data)
            if one.failed:
                _log.error("cage.protected_path_stays", path=one.path, reason=one.reason)
        for change in found.changed[:MAX_EVENTS]:
            path = f"{tree.root}/{change.path}"
            self._on_event("protected_path.changed", {**base, "path": path, "why": change.why})
        for kind, total in (("taken_back", len(found.taken_back)), ("changed", len(found.changed))):
            if total > MAX_EVENTS:
                _log.warning("cage.protected_paths_many", kind=kind, total=total, root=tree.root)
        if not found.complete and not tree.unwatched:
            tree.unwatched = True
            self._on_event("protected_path.unwatched", {**base, "path": tree.root})
        for watch in tree.watches:
            watch.findings.add(found)


def _activities(pids: tuple[int, ...]) -> tuple[Activity, ...] | None:
    """Return the activity of all these cages; None when one of them runs, starts or has ended."""
    found: list[Activity] = []
    for pid in pids:
        activity = read_activity(pid) if pid else None
        if activity is None:
            return None
        found.append(activity)
    return tuple(found)
