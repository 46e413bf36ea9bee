"""`probe_host`: which promises of the cage hold on this machine, found by trying; rows for doctor.

A row that fails means that cages refuse to start; a row that warns names a promise that is weaker
here. Nothing is ever started without a cage because of either.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import sys
from pathlib import Path

from kaged.cage import selftest_main
from kaged.cage.budget import ProcessBudget
from kaged.cage.collect import Collected, collect
from kaged.cage.errors import CageError, CageUnavailable, ProgramMissing
from kaged.cage.facts import BWRAP_MIN_VERSION
from kaged.cage.hints import install_command, limits_fix, namespace_fix
from kaged.cage.limits import LimitedResource, weaker_limits
from kaged.cage.orphan_processes import find_stale
from kaged.cage.proberow import ProbeRow, Status
from kaged.cage.process import CageDetails
from kaged.cage.request import CageRequest, HostMount
from kaged.cage.seccomp import seccomp_program
from kaged.cage.settings import CageSettings
from kaged.cage.spawn import Spawner
from kaged.kernel.policy import CageLimits, CagePolicy, SeccompProfile

TRIAL_TIMEOUT_S = 20.0
MIN_KERNEL = (5, 14)
MIN_OPEN_FILES = 4096
_SELFTEST = "/kaged-selftest/selftest.py"
_SELFTEST_SOURCE = str(Path(selftest_main.__file__).resolve())
# Each says a word and ends.
_RUNTIMES: tuple[tuple[str, ...], ...] = (
    ("python3", "-c", "import ssl, ctypes; print('up')"),
    ("node", "-e", "console.log('up')"),
    ("bun", "-e", "console.log('up')"),
    ("bash", "-c", "echo up"),
    ("jq", "-n", '"up"'),
)
_TRACE = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0 else 1)"
_FILES, _PIDS = 77, 7
MAX_HIDDEN_NAMES = 40  # per folder: they travel as one argument
# What lies here belongs to the system; cages show parts of it on purpose.
_SYSTEM_FOLDERS = frozenset({Path("/"), Path("/usr")})


async def probe_host(settings: CageSettings) -> list[ProbeRow]:
    """Try everything a cage needs, in trial cages, and return what works; takes about a second.

    Call it where cages are started from: the main thread of the daemon or of a command.
    """
    try:
        spawner = Spawner(settings)
    except OSError as error:
        return [
            ProbeRow.fail(
                "cage.shelf",
                "the base programs of every cage",
                f"the cache directory cannot be used: {error}",
                f"chmod 755 {settings.cache_dir}"
                if settings.cache_dir.is_dir() and not settings.cache_dir.is_symlink()
                else f"mkdir -p -m 755 {settings.cache_dir}",
            )
        ]
    try:
        return await _Probe(spawner).rows()
    finally:
        await spawner.close()


class _Probe:
    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._facts = spawner.facts

    async def rows(self) -> list[ProbeRow]:
        static = [self._kernel(), self._bwrap(), self._seccomp()]
        static += [self._limits(), self._open_files(), self._leftovers()]
        if any(row.status is Status.FAIL for row in static):
            return static
        started = await self._start()
        if any(row.status is Status.FAIL for row in started):
            return [*static, *started]
        return [
            *static,
            *started,
            await self._limits_hold(),
            *[await self._runtime(command) for command in _RUNTIMES],
            await self._relaxed(),
            await self._selftest(),
        ]

    # ---- by looking

    def _kernel(self) -> ProbeRow:
        row, protects = "cage.kernel", "process limits per cage, and watching processes safely"
        found, wanted = (".".join(map(str, one)) for one in (self._facts.kernel, MIN_KERNEL))
        if self._facts.kernel < MIN_KERNEL:
            why = f"Linux {found} is older than {wanted}"
            return ProbeRow.warn(row, protects, why, "upgrade the kernel")
        return ProbeRow.ok(row, protects, f"Linux {found}")

    def _bwrap(self) -> ProbeRow:
        row, protects = "cage.bwrap", "every cage: without it nothing that needs one is started"
        facts = self._facts
        fix = install_command("bubblewrap")
        if facts.bwrap is None:
            return ProbeRow.fail(row, protects, "bubblewrap is not installed", fix)
        if not facts.bwrap_version:
            why = f"{facts.bwrap} is not bubblewrap: it does not name its version"
            return ProbeRow.fail(row, protects, why, f"set [sandbox] bwrap to its path, or: {fix}")
        version = ".".join(map(str, facts.bwrap_version))
        if facts.bwrap_version < BWRAP_MIN_VERSION or facts.bwrap_missing_options:
            lacks = ", ".join(facts.bwrap_missing_options) or "fixes"
            why = f"bubblewrap {version} is too old (it lacks {lacks})"
            return ProbeRow.fail(row, protects, why, fix)
        if facts.bwrap_setuid:
            why = f"{facts.bwrap} is set-uid root, which cages do not need"
            return ProbeRow.warn(row, protects, why, f"sudo chmod u-s {facts.bwrap}")
        return ProbeRow.ok(row, protects, f"bubblewrap {version}")

    def _seccomp(self) -> ProbeRow:
        row, protects = "cage.seccomp", "the kernel, from system calls that no plugin needs"
        machine = self._facts.machine
        try:
            sizes = [len(seccomp_program(one, machine)) // 8 for one in SeccompProfile]
        except CageUnavailable as error:
            return ProbeRow.fail(row, protects, error.message, install_command("libseccomp"))
        words = " and ".join(map(str, sizes))
        return ProbeRow.ok(row, protects, f"filters of {words} instructions for {machine}")

    def _limits(self) -> ProbeRow:
        row = "cage.limits"
        protects = "the machine, from a cage that takes all memory, processes or processors"
        backend = self._spawner.backend
        missing = weaker_limits(backend)
        if not missing:
            return ProbeRow.ok(row, protects, f"by {backend.name}")
        why = getattr(backend, "why", "")
        detail = f"by {backend.name}: {', '.join(missing)} hold per process or not at all ({why})"
        if LimitedResource.MEMORY in missing:
            detail += "; memory that a process keeps in memfd counts nowhere"
        if self._spawner.settings.require_limits:
            return ProbeRow.fail(row, protects, detail, limits_fix())
        return ProbeRow.warn(row, protects, detail, limits_fix())

    def _open_files(self) -> ProbeRow:
        row, protects = "cage.open-files", "the daemon's own files, from many processes at once"
        # The daemon raises its soft limit to the hard one; a command that asks does not.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        budget = ProcessBudget(None if hard == resource.RLIM_INFINITY else hard)
        detail = f"room for {budget.processes} processes in {budget.open_files} open files"
        if budget.open_files < MIN_OPEN_FILES:
            fix = "set LimitNOFILE=65536 in the service, or `ulimit -Hn 65536` before the start"
            return ProbeRow.warn(row, protects, f"only {detail}", fix)
        return ProbeRow.ok(row, protects, detail)

    def _leftovers(self) -> ProbeRow:
        row, protects = "cage.leftovers", "the machine, from what a killed daemon left"
        stale = find_stale()
        if stale:
            names = ", ".join(map(str, stale))
            pids = " ".join(str(one.pid) for one in stale)
            detail = f"processes of a daemon that no longer runs: {names}"
            return ProbeRow.warn(row, protects, detail, f"kaged daemon restart, or kill -9 {pids}")
        swept = self._spawner.swept
        detail = f"{swept} groups of a daemon that no longer runs were removed" if swept else "none"
        return ProbeRow.ok(row, protects, detail)

    # ---- by trying

    async def _start(self) -> list[ProbeRow]:
        promises = {
            "cage.namespaces": "users, processes and mounts of the cage's own",
            "cage.loopback": "a network of the cage's own",
            "cage.mounts": "a file system of the cage's own",
        }
        try:
            process = await self._spawner.spawn(_trial("start", ("true",)))
            done = await collect(process)
        except CageError as error:
            row = str(error.data.get("row", "cage.start"))
            fix = namespace_fix(row) if row in promises else error.fix or ""
            return [ProbeRow.fail(row, promises.get(row, "every cage"), error.message, fix)]
        if done.report.exit_code != 0:
            said = done.stderr.decode(errors="replace").strip() or done.report.detail
            return [ProbeRow.fail("cage.start", "every cage", f"a trial cage failed: {said}")]
        assert process.cage is not None
        return [
            *(ProbeRow.ok(row, protects, "a trial cage ran") for row, protects in promises.items()),
            self._identity(process.cage),
            self._ceilings(process.cage),
        ]

    def _identity(self, cage: CageDetails) -> ProbeRow:
        row, protects = "cage.identity", "the daemon's own uid, from what runs in cages"
        if not self._facts.is_root:
            return ProbeRow.ok(row, protects, "cages run as the daemon's ordinary user")
        detail = "the daemon is root; its cages are uid 0, shown as 1000 inside"
        if cage.identity.switches:
            detail = (
                "the daemon is root; a cage gets a user apart where its files allow that, "
                "and is uid 0, shown as 1000 inside, where they do not"
            )
        elif cage.identity.why:
            detail += f": {cage.identity.why}"
        return ProbeRow.warn(row, protects, detail, "run the daemon as an ordinary user")

    def _ceilings(self, cage: CageDetails) -> ProbeRow:
        row = "cage.ceilings"
        protects = "the daemon's file watching, from a cage that takes all inotify instances"
        if cage.ceilings:
            return ProbeRow.ok(row, protects, "set per cage")
        why = "/proc/sys/user cannot be written here, so cages share the user's own ceiling"
        return ProbeRow.warn(row, protects, why, "sudo mount -o remount,rw /proc/sys")

    async def _limits_hold(self) -> ProbeRow:
        row, protects = "cage.limits-hold", "that a cage's limits are those of its policy"
        policy = CagePolicy(limits=CageLimits(pids=_PIDS, open_files=_FILES))
        script = "ulimit -n; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.01 & done; wait"
        done = await self._run(_trial("limits", ("sh", "-c", script), policy))
        shown = done.stdout.decode(errors="replace").split()
        if shown[:1] != [str(_FILES)]:
            return ProbeRow.fail(row, protects, f"open files: {shown} instead of {_FILES}")
        if LimitedResource.PIDS in self._spawner.backend.enforces and not done.report.forks_refused:
            return ProbeRow.fail(row, protects, "more processes ran than the policy has")
        return ProbeRow.ok(row, protects, "a trial cage met them")

    async def _runtime(self, command: tuple[str, ...]) -> ProbeRow:
        row, protects = f"cage.runtime.{command[0]}", f"plugins written for {command[0]} start"
        try:
            done = await self._run(_trial(command[0], command))
        except ProgramMissing:
            return ProbeRow.ok(row, protects, "not installed here, so not offered")
        except CageError as error:
            return ProbeRow.warn(row, protects, error.message, error.fix or "")
        if done.report.exit_code == 0 and b"up" in done.stdout:
            return ProbeRow.ok(row, protects, "starts in a cage")
        said = (done.stderr or done.stdout)[:200].decode(errors="replace").strip()
        return ProbeRow.warn(row, protects, f"{done.report.detail}: {said}")

    async def _relaxed(self) -> ProbeRow:
        row, protects = "cage.relaxed", "debuggers, in cages that ask for the relaxed profile"
        policy = CagePolicy(seccomp=SeccompProfile.RELAXED)
        try:
            done = await self._run(_python("relaxed", ("-c", _TRACE), policy))
        except CageError as error:
            return ProbeRow.warn(row, protects, error.message, error.fix or "")
        if done.report.exit_code == 0:
            return ProbeRow.ok(row, protects, "a traced process ran")
        why = "tracing was refused; see kernel.yama.ptrace_scope"
        return ProbeRow.warn(row, protects, why, "sudo sysctl -w kernel.yama.ptrace_scope=1")

    async def _selftest(self) -> ProbeRow:
        row, protects = "cage.selftest", "everything outside the cage"
        mount = HostMount(_SELFTEST_SOURCE, _SELFTEST)
        try:
            words = (_SELFTEST, json.dumps(_hidden_from_cages()))
            done = await self._run(_python("selftest", words, CagePolicy(), (mount,)))
        except CageError as error:
            return ProbeRow.warn(row, protects, f"not run: {error.message}", error.fix or "")
        lines = done.stdout.decode(errors="replace").splitlines()
        bad = [line.removeprefix("bad ") for line in lines if line.startswith("bad ")]
        good = sum(line.startswith("ok ") for line in lines)
        if done.report.exit_code != 0 or bad or not good:
            why = "; ".join(bad) or done.stderr.decode(errors="replace")[-200:]
            return ProbeRow.fail(row, protects, why, "report this: cages do not hold on this host")
        return ProbeRow.ok(row, protects, f"{good} attempts to leave a cage were refused")

    async def _run(self, request: CageRequest) -> Collected:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            return await collect(await self._spawner.spawn(request))


def _hidden_from_cages() -> list[str]:
    """Return paths of this host that no cage may show: what lies beside the way to its programs.

    The trial cage mounts the interpreter and this package, which may lie in somebody's home.
    """
    prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
    prefixes |= {path.resolve() for path in prefixes}
    shown = {*prefixes, Path(sys.executable).parent, Path(sys.executable).resolve().parent}
    homes = {Path.home(), Path("/root"), Path("/home")}
    folders = {folder for path in shown for folder in path.parents} | homes
    found: list[str] = []
    for folder in sorted(folders - _SYSTEM_FOLDERS):
        if any(folder == prefix or prefix in folder.parents for prefix in prefixes):
            continue
        way = {path.relative_to(folder).parts[0] for path in shown if folder in path.parents}
        if not way:
            found.append(str(folder))
        names = (name for name in _names(folder) if name not in way)
        found += [str(folder / name) for name in itertools.islice(names, MAX_HIDDEN_NAMES)]
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir())
    except OSError:
        return []


def _trial(name: str, command: tuple[str, ...], policy: CagePolicy | None = None) -> CageRequest:
    return CageRequest(f"doctor:{name}", policy or CagePolicy(), command)


def _python(
    name: str,
    words: tuple[str, ...],
    policy: CagePolicy,
    mounts: tuple[HostMount, ...] = (),
) -> CageRequest:
    command = (sys.executable, "-I", "-S", *words)
    return CageRequest(f"doctor:{name}", policy, command, mounts=mounts)
