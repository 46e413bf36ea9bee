"""A process that a test leaves behind fails that test, and not one that runs later.

Every process that a test run starts, at whatever distance, carries a mark: the soft limit of its
message queues, which children inherit, which nobody changes, and which another process can read.
A cage or a helper with the mark that has lost its parent is a leftover of the test before.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parent / "unit"
FIRST = Path("/proc/1/task")
PATIENCE_S = 20.0  # what was just killed is gone in a moment, or in some on a busy machine
PAUSE_S = 0.02
_LIMIT_LINE = "Max msgqueue size"
_HELPERS = (b"/setup_helper_main.py", b"/launcher_main.py", b"/nsworker.py")


def every_process() -> list[int]:
    """Return the ids of all processes."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def children_of_the_first() -> list[int]:
    """Return the ids of those whose parent is the first process: it takes over who lost theirs.

    Twenty times as fast as looking at all. The kernel may leave one out when another ends in the
    same moment, so a module's last test looks at all.
    """
    found: list[int] = []
    try:
        for task in FIRST.iterdir():
            words = (task / "children").read_text(encoding="ascii").split()
            found += map(int, words)
    except OSError:  # not every kernel has the file, and a thread may end
        return every_process()
    return found


class Leftovers:
    """Finds processes of this worker's tests that nobody looks after any more."""

    def __init__(self, worker: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
        self._mark = max(0, min(soft, hard) - 1 - worker)
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (self._mark, hard))
        self._known: set[int] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None]:
        """Look for leftovers when a test and its fixtures have ended."""
        yield
        if UNIT in item.path.parents:  # no unit test starts a process, and there are thousands
            return
        last = nextitem is None or nextitem.path != item.path
        found = self._settled(every_process if last else children_of_the_first)
        if found:
            self._known |= found.keys()
            pytest.fail(f"left behind: {'; '.join(found.values())}", pytrace=False)

    def _settled(self, look: Callable[[], list[int]]) -> dict[int, str]:
        until = time.monotonic() + PATIENCE_S
        while (found := self.orphans(look)) and time.monotonic() < until:
            time.sleep(PAUSE_S)
        return found

    def orphans(self, look: Callable[[], list[int]] | None = None) -> dict[int, str]:
        """Return those that nobody looks after, of all processes or of those that `look` sees."""
        found: dict[int, str] = {}
        for pid in (look or every_process)():
            if pid not in self._known:
                try:
                    shown = self._orphan(Path("/proc", str(pid)))
                except OSError:  # gone, or not ours to look at
                    continue
                if shown:
                    found[pid] = shown
        return found

    def _orphan(self, process: Path) -> str:
        stat = (process / "stat").read_bytes()
        name, _, rest = stat.partition(b"(")[2].rpartition(b")")
        state, parent = rest.split()[:2]
        if parent != b"1" or state == b"Z" or not (name == b"bwrap" or name.startswith(b"python")):
            return ""
        words = (process / "cmdline").read_bytes()
        if name != b"bwrap" and not any(one in words for one in _HELPERS):
            return ""
        if not self._marked(process) or os.getuid() not in {0, process.stat().st_uid}:
            return ""  # another run's, or another user's
        return f"{process.name} {words.decode(errors='replace')[:120]}".replace("\0", " ")

    def _marked(self, process: Path) -> bool:
        for line in (process / "limits").read_text(encoding="ascii").splitlines():
            if line.startswith(_LIMIT_LINE):
                return line.removeprefix(_LIMIT_LINE).split()[0] == str(self._mark)
        return False


def pytest_configure(config: pytest.Config) -> None:
    """Mark this worker's processes and watch them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    config.pluginmanager.register(Leftovers(int(worker)), "kaged-leftovers")
