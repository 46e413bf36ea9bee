"""Fail one step of a start after the other, on the daemon's event loop, and look at what is left.

    python tests/chaos/cage/fault_points.py SCENARIO [every]

Runs in a process of its own, which adopts whatever loses its parent. A step is a call of the
system from the packages that start processes. First a good start is recorded, then each kind of
step fails in turn (a call by a function): with one error of the system (the errors take turns), or
with every one of them; and at every third each helper process is killed. A thorough run does all of
it at every single step. After every try a good start must work, and nothing may be there that was
not there before. Prints one JSON object a line.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvloop

from fakes.plugin_lab import PluginLab
from kaged.base import KagedError
from kaged.cage import CageRequest, CageSettings, Pty, Spawner, Uncaged, UncagedRequest
from kaged.cage.errors import SpawnFailed
from kaged.cage.launchers import STARTS_BEFORE_STOCKING, Launchers
from kaged.cage.limits.tree import cgroup_mounts
from kaged.cage.net.gate import NetGate
from kaged.cage.net.namespace import NamespaceHelper
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy
from kaged.peer.connection import Connection
from kaged.peer.process import PeerProcess
from kaged.plugins.states import PluginState
from thorough import THOROUGH, sample

ERRORS = (errno.EMFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EPERM)
# Where a failing call counts as a step of the start.
PACKAGES = ("/kaged/cage/", "/kaged/peer/", "/kaged/plugins/")
QUIET_S, PATIENCE_S = 0.01, 20.0
_PR_SET_CHILD_SUBREAPER = 36
_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "pipe2"),
    (os, "open"),
    (os, "pidfd_open"),
    (os, "memfd_create"),
    (os, "openpty"),
    (os, "mkdir"),
    (os, "mkfifo"),
    (os, "write"),
    (os, "fchown"),
    (os, "set_blocking"),
    (io, "open"),
    (fcntl, "fcntl"),
    (fcntl, "ioctl"),
    (socket, "socketpair"),
    (socket, "send_fds"),
    (socket, "recv_fds"),
    (subprocess, "Popen"),
)


@dataclass
class Faults:
    """Counts steps; the one with number `at` fails, or has `act` done to it instead."""

    armed: bool = False
    at: int = -1
    error: int = 0
    act: Callable[[], None] | None = None
    steps: list[str] = field(default_factory=list[str])
    hit: str = ""

    def step(self, name: str) -> None:
        if not self.armed:
            return
        place = _caller(sys._getframe(2))
        if place is None:
            return
        self.steps.append(f"{name} in {place}")
        if len(self.steps) - 1 != self.at:
            return
        self.hit = self.steps[-1]
        if self.act is not None:
            self.act()
        else:
            raise OSError(self.error, f"{os.strerror(self.error)} (made to fail)")


FAULTS = Faults()
# Where we are before a spawner moves us.
CGROUPS = tuple(mount.folder for mount in cgroup_mounts())
# Of the gate, in the scenario that has one.
NAMESPACES = NamespaceHelper()


class Loop(uvloop.Loop):
    """The production loop, whose watching of a descriptor can fail too."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        FAULTS.step("loop.add_reader")
        super().add_reader(fd, callback, *args)

    async def connect_read_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        FAULTS.step("loop.connect_read_pipe")
        return await super().connect_read_pipe(protocol_factory, pipe)

    async def connect_write_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        FAULTS.step("loop.connect_write_pipe")
        return await super().connect_write_pipe(protocol_factory, pipe)


def _caller(frame: FrameType | None) -> str | None:
    """Return the function of ours that made the call; None when somebody else did."""
    while frame is not None:
        code = frame.f_code
        for package in PACKAGES:
            if package in code.co_filename:
                return f"{Path(code.co_filename).name}:{code.co_name}"
        if "/asyncio/" in code.co_filename or "/kaged/" in code.co_filename:
            return None
        frame = frame.f_back
    return None


def _patch() -> None:
    for module, name in _CALLS:
        real = getattr(module, name)
        setattr(module, name, _failing(f"{module.__name__}.{name}", real))


def _failing(name: str, real: Any) -> Any:
    if isinstance(real, type):

        class Failing(real):  # pyright: ignore[reportUntypedBaseClass] - Popen, as a type
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self.returncode = 0  # so that nobody waits for one that never was
                FAULTS.step(name)
                self.returncode = None
                super().__init__(*args, **kwargs)

        return Failing

    def call(*args: Any, **kwargs: Any) -> Any:
        FAULTS.step(name)
        return real(*args, **kwargs)

    return call


# ---- what is there


def descendants() -> dict[int, str]:
    """Return every process below this one, by number, with what it is."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                fd = os.open(f"/proc/{entry.name}/stat", os.O_RDONLY)
                try:
                    text = os.read(fd, 4096).decode(errors="replace")
                finally:
                    os.close(fd)
                name, _, rest = text.partition("(")[2].rpartition(")")
                parents[int(entry.name)] = int(rest.split()[1])
                names[int(entry.name)] = f"{name} ({rest.split()[0]})"
    found: dict[int, str] = {}
    below = {os.getpid()}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found |= {pid: names[pid] for pid in below}
    return found


def descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            link = str(entry.readlink())
            found[link.partition(":")[0] if ":[" in link else link] += 1
    return found


def files(spawner: Spawner) -> set[str]:
    """Return the files and groups that starts could leave behind."""
    found = {str(path) for path in spawner.settings.cache_dir.rglob("*")}
    for folder in CGROUPS:
        # Ours are named after the process; other daemons start cages as well.
        own = folder.rglob(f"kaged-{os.getpid()}-*/*")
        found |= {str(path) for path in own if path.is_dir()}
    return found


def mounts() -> set[str]:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return {line.split(" ", 1)[1] for line in text.splitlines()}


@dataclass
class State:
    """Everything a failed start could have left."""

    processes: dict[int, str]
    descriptors: Counter[str]
    files: set[str]
    mounts: set[str]

    def more_than(self, before: State, helpers: set[int]) -> list[str]:
        known = before.processes.keys() | helpers
        more = [f"process {name}" for pid, name in self.processes.items() if pid not in known]
        more += [f"descriptor {one}" for one in (self.descriptors - before.descriptors).elements()]
        more += [f"file {one}" for one in sorted(self.files - before.files)]
        return more + [f"mount {one}" for one in sorted(self.mounts - before.mounts)]


def state(spawner: Spawner) -> State:
    return State(descendants(), descriptors(), files(spawner), mounts())


def reap_orphans(spawner: Spawner) -> None:
    """Reap what was given to us as the nearest parent left, as init would."""
    own = set(helpers(spawner))
    for pid, name in descendants().items():
        if pid not in own and name.endswith("(Z)"):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def helpers(spawner: Spawner) -> dict[int, str]:
    """Return the helper processes that a spawner keeps, with all they have forked ahead."""
    found: dict[int, str] = dict.fromkeys(spawner.launchers.pids, "launcher")
    if spawner.setup_helper.pid is not None:
        found[spawner.setup_helper.pid] = "setup helper"
    if NAMESPACES.pid is not None:
        found[NAMESPACES.pid] = "namespace helper"
    below = dict(found)
    for pid in descendants():
        parent = _parent(pid)
        if parent in found:
            below[pid] = f"{found[parent]}'s worker"
    return below


def _parent(pid: int) -> int:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    return -1


# ---- what is started

Start = Callable[[Spawner], Awaitable[None]]


def _caged(stdio: Any = None, net: tuple[NetTarget, ...] = ()) -> CageRequest:
    policy = CagePolicy(limits=CageLimits(walltime_sec=60), net=net)
    extra = {} if stdio is None else {"stdio": stdio}
    return CageRequest("trial", policy, ("cat",), **extra)


async def _to_its_end(spawner: Spawner, request: CageRequest | UncagedRequest) -> None:
    process = await spawner.spawn(request)
    FAULTS.armed = False
    process.kill()
    await process.wait()
    process.close()


def _no_stock(spawner: Spawner) -> Launchers:
    """Replace the launchers of a spawner by some that know of no start yet, and of no failure."""
    spawner.launchers.close()
    spawner.launchers = Launchers()
    return spawner.launchers


async def _filled(launchers: Launchers) -> None:
    """Order launchers as the starts of cages do; returns when one is there or none will be."""
    for _ in range(STARTS_BEFORE_STOCKING):
        launchers.restock()
    until = time.monotonic() + PATIENCE_S
    while launchers.pids and not launchers.in_stock:
        if time.monotonic() > until:
            raise SpawnFailed("no launcher came into stock")
        await asyncio.sleep(QUIET_S)


async def cage(spawner: Spawner) -> None:
    _no_stock(spawner)  # from scratch, each time
    await _to_its_end(spawner, _caged())


async def cage_in_stock(spawner: Spawner) -> None:
    FAULTS.armed, armed = False, FAULTS.armed
    await _filled(_no_stock(spawner))
    FAULTS.armed = armed
    await _to_its_end(spawner, _caged())


async def refill(spawner: Spawner) -> None:
    launchers = _no_stock(spawner)
    await _filled(launchers)
    FAULTS.armed = False
    launchers.close()


async def terminal(spawner: Spawner) -> None:
    await _to_its_end(spawner, _caged(Pty(24, 80)))


async def network(spawner: Spawner) -> None:
    await _to_its_end(spawner, _caged(net=(NetTarget("example.org", 443),)))


async def uncaged(spawner: Spawner) -> None:
    await _to_its_end(spawner, UncagedRequest("trial", Uncaged("a test"), ("/bin/cat",)))


async def uncaged_terminal(spawner: Spawner) -> None:
    request = UncagedRequest("trial", Uncaged("a test"), ("/bin/cat",), stdio=Pty(24, 80))
    await _to_its_end(spawner, request)


async def peer(spawner: Spawner) -> None:
    connection = Connection(cast("Any", _Nobody()), name="trial")
    started = await PeerProcess.start(spawner, _caged(), connection, lambda _line: None)
    FAULTS.armed = False
    await started.close()


def plugin(lab: PluginLab) -> Start:
    """Return a start of a caged plugin by the plugin host, up to its answered greeting."""
    installed = lab.install()

    async def start(_spawner: Spawner) -> None:
        hosted = lab.plugin(installed)
        await hosted.start()
        FAULTS.armed = False
        failed = None if hosted.state is PluginState.RUNNING else hosted.note
        await lab.remove(hosted)
        if failed is not None:
            raise SpawnFailed(failed)

    return start


class _Nobody:
    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None


SCENARIOS: dict[str, Start] = {
    "cage": cage,
    "cage from stock": cage_in_stock,
    "refill of the stock": refill,
    "cage with a terminal": terminal,
    "cage with a network": network,
    "uncaged": uncaged,
    "uncaged with a terminal": uncaged_terminal,
    "peer": peer,
}
PLUGIN = "plugin"


# The helper processes that a start of each kind uses.
KILLED: dict[str, tuple[str, ...]] = {
    "cage": ("setup helper",),
    "cage from stock": ("setup helper", "launcher"),
    "refill of the stock": ("launcher",),
    "cage with a terminal": ("setup helper",),
    "cage with a network": ("setup helper", "namespace helper"),
    "peer": ("setup helper",),
    PLUGIN: ("setup helper",),
}


@contextmanager
def faults(at: int, error: int = 0, act: Callable[[], None] | None = None) -> Generator[None]:
    FAULTS.at, FAULTS.error, FAULTS.act, FAULTS.steps = at, error, act, []
    FAULTS.hit = ""
    FAULTS.armed = True
    try:
        yield
    finally:
        FAULTS.armed = False


class Trial:
    """Breaks one scenario in every place."""

    def __init__(self, spawner: Spawner, start: Start) -> None:
        self._spawner = spawner
        self._start = start

    async def run(self, name: str, *, every: bool) -> None:
        for _ in range(3):  # helpers and caches stand
            await self._good()
        with faults(-1):
            await self._start(self._spawner)
        steps = list(FAULTS.steps)
        assert steps, "a start without a single step was recorded"
        before = await self._settled()
        _say(scenario=name, step="recorded", fault="none", steps=len(steps))
        tried = sample(enumerate(steps), kind=lambda one: one[1])
        for turn, (number, _) in enumerate(tried):
            errors = ERRORS if every or THOROUGH else (ERRORS[turn % len(ERRORS)],)
            for error in errors:
                row = await self._broken(before, number, error)
                _say(scenario=name, step=FAULTS.hit, **row)
            for helper in KILLED.get(name, ()) if THOROUGH or turn % 3 == 0 else ():
                row = await self._killed(before, number, helper)
                _say(scenario=name, step=FAULTS.hit, **row)

    async def _good(self) -> None:
        await self._start(self._spawner)

    async def _broken(self, before: State, number: int, error: int) -> dict[str, Any]:
        said = "started"
        with faults(number, error):
            try:
                async with asyncio.timeout(PATIENCE_S * 6):
                    await self._start(self._spawner)
            except KagedError as failed:
                said = f"{failed.code}: {failed.message}"
            except Exception as failed:  # noqa: BLE001 - an untyped error is the finding
                said = f"UNTYPED {type(failed).__name__}: {failed}"
        return {"fault": errno.errorcode[error], "said": said, **await self._checked(before, said)}

    async def _killed(self, before: State, number: int, helper: str) -> dict[str, Any]:
        def kill() -> None:
            for pid, what in helpers(self._spawner).items():
                if what == helper:
                    os.kill(pid, signal.SIGKILL)

        said = "started"
        with faults(number, act=kill):
            try:
                async with asyncio.timeout(PATIENCE_S * 6):
                    await self._start(self._spawner)
            except KagedError as failed:
                said = f"{failed.code}: {failed.message}"
            except Exception as failed:  # noqa: BLE001 - an untyped error is the finding
                said = f"UNTYPED {type(failed).__name__}: {failed}"
        return {"fault": f"{helper} killed", "said": said, **await self._checked(before, said)}

    async def _checked(self, before: State, said: str) -> dict[str, Any]:
        try:
            await self._good()
        except KagedError as error:
            return {"left": [], "problem": f"the next start failed: {error.message}"}
        now = await self._settled(before)
        left = now.more_than(before, set(helpers(self._spawner)))
        return {"left": left, "problem": said if said.startswith("UNTYPED") else ""}

    async def _settled(self, before: State | None = None) -> State:
        until = time.monotonic() + PATIENCE_S
        while True:
            self._spawner.launchers.close()  # how many there are is a matter of chance
            reap_orphans(self._spawner)
            await asyncio.sleep(QUIET_S)
            now = state(self._spawner)
            known = set(helpers(self._spawner))
            settled = before is not None and not now.more_than(before, known)
            if before is None:
                settled = not (now.processes.keys() - known)
            if settled or time.monotonic() > until:
                return now


async def main(name: str, *, every: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="kaged-faults-") as folder:
        Path(folder).chmod(0o755)
        if name == PLUGIN:
            (Path(folder) / "lab").mkdir()
            lab = PluginLab(Path(folder) / "lab")
            await lab.open()
            await Trial(lab.spawner, plugin(lab)).run(name, every=every)
            await lab.close()
            return
        gate = (
            NetGate(lambda *_: None, helper=NAMESPACES) if name == "cage with a network" else None
        )
        if gate is not None:
            await gate.start()
        spawner = Spawner(CageSettings(cache_dir=Path(folder) / "cache"), gate=gate)
        try:
            await Trial(spawner, SCENARIOS[name]).run(name, every=every)
        finally:
            await spawner.close()
            if gate is not None:
                await gate.close()
        until = time.monotonic() + PATIENCE_S
        while descendants() and time.monotonic() < until:
            reap_orphans(spawner)
            await asyncio.sleep(QUIET_S)
        _say(scenario=name, step="end", fault="none", left=[*descendants().values()])


def _say(**row: Any) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _patch()
    with asyncio.Runner(loop_factory=Loop) as _runner:
        _runner.run(main(sys.argv[1], every="every" in sys.argv[2:]))
