"""`Preparer`: everything a caged start needs before a process exists, opened and compiled."""

from __future__ import annotations

import contextlib
import os
from dataclasses import field, fields, replace
from typing import Any

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.arguments import check_command, check_path, encode_arguments
from kaged.cage.base_programs import base_program_key, base_program_sources, build_base_programs
from kaged.cage.binfolder import BinFolder, stock_bin_folder
from kaged.cage.compile import CageCommand, Resolved, compile_cage
from kaged.cage.errors import CageUnavailable, PolicyConflict
from kaged.cage.facts import HostFacts
from kaged.cage.gate_port import NetGatePort
from kaged.cage.grants import (
    GrantSet,
    Protected,
    open_grants,
    open_runtime_dirs,
)
from kaged.cage.identity import (
    Identity,
    IdentityKind,
    IdentityMode,
    can_reach,
    choose_identity,
)
from kaged.cage.layout import ShownPath
from kaged.cage.limits import LimitedResource, LimitsBackend, rlimits_for, weaker_limits
from kaged.cage.patterns import expand_patterns
from kaged.cage.programs import ProgramPlan, plan_programs
from kaged.cage.request import CageKind, CageRequest, Programs
from kaged.cage.seccomp import seccomp_fd
from kaged.cage.settings import CageSettings
from kaged.kernel.policy import CageLimits, CageState, FsGrant, FsMode, merge_grants

BASE_PROGRAMS_CHECK_S = 30.0
MAX_CACHED_PLANS = 256
MAX_KNOWN_FOLDERS = 256


@dataclass
class PreparedCage:
    """A compiled cage with every descriptor it needs; close it when bwrap has been started."""

    request: CageRequest
    command: CageCommand
    identity: Identity
    rlimits: tuple[tuple[int, int], ...]
    net_plan: Any
    weaknesses: tuple[str, ...]
    _grants: GrantSet
    _runtimes: GrantSet
    _state: GrantSet
    _machine: str
    setpriv: str | None = None
    _opened: list[int] = field(default_factory=list[int])

    def descriptors(
        self, info: int, block: int, first: int | None = None
    ) -> tuple[int, tuple[int, ...]]:
        """Open what bwrap reads; return the descriptor of its options and all it must inherit.

        With `first`, bwrap will find them, in this order, under the numbers from there on.
        """
        labels = {"info": info, "block": block}
        labels["seccomp"] = self._keep(seccomp_fd(self.request.policy.seccomp, self._machine))
        for label, content in self.command.files:
            labels[label] = self._keep(_memory_file(label, content))
        for number, grant in enumerate(self._grants.grants):
            labels[f"grant:{number}"] = grant.fd
        for number, grant in enumerate(self._runtimes.grants):
            labels[f"runtime:{number}"] = grant.fd
        for grant in self._state.grants:
            labels["state"] = grant.fd
        numbers = labels
        if first is not None:
            numbers = {label: number for number, label in enumerate(labels, first + 1)}
        arguments = encode_arguments(self.command.options, numbers)
        args = self._keep(_memory_file("args", arguments))
        return args if first is None else first, (args, *labels.values())

    def granted_ids(self) -> dict[str, tuple[int, int]]:
        """Return device and number of what is mounted at each granted path."""
        found = ((one.path, os.fstat(one.fd)) for one in self._grants.grants)
        return {path: (entry.st_dev, entry.st_ino) for path, entry in found}

    def close(self) -> None:
        """Close every descriptor. Safe to call twice."""
        for fd in self._opened:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._opened.clear()
        for grants in (self._grants, self._runtimes, self._state):
            grants.close()

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd


class Preparer:
    """Turns requests into `PreparedCage` cages; keeps what does not change between two of them."""

    def __init__(
        self, settings: CageSettings, facts: HostFacts, backend: LimitsBackend, clock: Clock
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._backend = backend
        self._clock = clock
        self._plans: dict[object, ProgramPlan] = {}
        self._folders: set[BinFolder] = set()
        self._base_programs_seen_s = clock.monotonic_s()
        self._base_program_key = base_program_key(base_program_sources())

    def prepare(
        self,
        request: CageRequest,
        granted: tuple[FsGrant, ...],
        pipes: tuple[str, ...],
        gate: NetGatePort | None,
        serial: int,
    ) -> PreparedCage:
        """Open, find and compile. Raises CageError; nothing stays open then.

        `granted` are the request's paths as `granted_paths` gives them, `pipes` the named pipes
        that lie in what of them is read-only.
        """
        check_command(request.command)
        _check_limits(request.policy.limits)
        self._refresh_base_programs()
        asks = request.ask_host is not None
        net_plan = gate.prepare(request.policy.net, asks) if gate is not None else None
        protected = Protected(
            paths=(*self._settings.protected, str(self._settings.cache_dir)),
            own=request.own_dirs,
        )
        with contextlib.ExitStack() as undo:
            grants = open_grants(granted, protected)
            undo.callback(grants.close)
            plan = self._plan(request, grants)
            runtimes = open_runtime_dirs(plan.dirs, protected)
            undo.callback(runtimes.close)
            state = _open_state(request)
            undo.callback(state.close)
            identity = self._identity(request, grants, plan, serial)
            resolved = Resolved(
                grants=tuple(ShownPath(one.path, one.mode, one.is_dir) for one in grants.grants),
                programs=plan,
                net_environment=tuple(net_plan.environment) if net_plan is not None else (),
                net_files=tuple(net_plan.files) if net_plan is not None else (),
                # What the cage's user cannot reach, bwrap could not cover.
                pipes=tuple(path for path in pipes if can_reach(identity, path)),
                as_root=identity.kind is IdentityKind.ROOT_SHOWN_AS_USER,
            )
            command = compile_cage(request, self._facts, resolved)
            self._stock(command.folders)
            undo.pop_all()
        return PreparedCage(
            request=request,
            command=command,
            identity=identity,
            rlimits=rlimits_for(request.policy.limits, self._backend.enforces),
            net_plan=net_plan,
            weaknesses=self._weaknesses(identity),
            _grants=grants,
            _runtimes=runtimes,
            _state=state,
            _machine=self._facts.machine,
            setpriv=self._facts.setpriv,
        )

    def _plan(self, request: CageRequest, grants: GrantSet) -> ProgramPlan:
        names = tuple(entry.binary for entry in request.policy.exec)
        visible = (*(one.path for one in grants.grants), *(one.source for one in request.mounts))
        cwd = request.cwd or request.home or "/"
        key = (request.command, names, visible, request.runtimes, cwd, request.effective_programs)
        known = self._plans.get(key)
        if known is not None and known.still_true():
            return known
        if request.effective_programs is Programs.SYSTEM:
            visible = (*visible, "/usr", "/bin", "/sbin")
        plan = plan_programs(
            request.command,
            names,
            self._facts,
            visible=visible,
            runtimes=request.runtimes,
            cwd=cwd,
        )
        if len(self._plans) >= MAX_CACHED_PLANS:
            self._plans.pop(next(iter(self._plans)))
        self._plans[key] = plan
        return plan

    def _stock(self, folders: tuple[BinFolder, ...]) -> None:
        for folder in folders:
            if folder not in self._folders:
                stock_bin_folder(folder)
                if len(self._folders) >= MAX_KNOWN_FOLDERS:
                    self._folders.clear()
                self._folders.add(folder)

    def _identity(
        self, request: CageRequest, grants: GrantSet, plan: ProgramPlan, serial: int
    ) -> Identity:
        sources = (
            self._facts.base_programs.path,
            *plan.files,
            *plan.dirs,
            *(source for source, _ in plan.moved),
            *(mount.source for mount in request.mounts),
        )
        writable = [mount.source for mount in request.mounts if mount.mode is FsMode.RW]
        if request.policy.state is CageState.PERSISTENT and request.state_dir is not None:
            writable.append(request.state_dir)
        mode = self._settings.identity
        identity = choose_identity(
            self._facts, mode, grants.grants, sources, serial, tuple(writable)
        )
        if identity.kind is not IdentityKind.ROOT_SHOWN_AS_USER:
            return identity
        if mode is IdentityMode.SEPARATE:
            raise CageUnavailable(
                f"a user apart was asked for, and {identity.why}", row="cage.identity"
            )
        if LimitedResource.PIDS not in self._backend.enforces:
            raise CageUnavailable(
                "the cage would run as uid 0 without a limit on processes, because the kernel "
                f"does not count them for uid 0 ({identity.why})",
                row="cage.limits",
                fix="run the daemon as an ordinary user, or give it a pids cgroup",
            )
        return identity

    def _weaknesses(self, identity: Identity) -> tuple[str, ...]:
        found: list[str] = []
        if identity.kind is IdentityKind.ROOT_SHOWN_AS_USER:
            found.append(f"uid 0 outside: {identity.why}")
        missing = weaker_limits(self._backend)
        if missing:
            names = ", ".join(missing)
            found.append(f"limits by {self._backend.name}, per process only: {names}")
        return tuple(found)

    def _refresh_base_programs(self) -> None:
        """Notice upgraded base programs, at most twice a minute."""
        now = self._clock.monotonic_s()
        if now - self._base_programs_seen_s < BASE_PROGRAMS_CHECK_S:
            return
        self._base_programs_seen_s = now
        key = base_program_key(base_program_sources())
        if key != self._base_program_key:
            base_programs = build_base_programs(self._settings.cache_dir)
            self._facts = replace(self._facts, base_programs=base_programs)
            self._folders.clear()
            self._base_program_key = key


def granted_paths(request: CageRequest) -> tuple[FsGrant, ...]:
    """Return the paths of a request with one mode each and patterns as what they match now.

    Raises:
        UnsafeArgument: a path is not one that can be looked for.
        GrantRefused: a pattern matches more paths than a cage takes.
    """
    merged = merge_grants(request.policy)
    for grant in merged:
        check_path(grant.path, "granted path")
    # A plugin's capabilities have no patterns: a star in its path is a star.
    return merged if request.kind is CageKind.PLUGIN else expand_patterns(merged)


def _check_limits(limits: CageLimits) -> None:
    wrong = [one.name for one in fields(limits) if getattr(limits, one.name) < 0]
    wrong += [name for name in ("memory_mb", "pids", "cpu_shares") if not getattr(limits, name)]
    if wrong:
        raise PolicyConflict(f"these limits are not above zero: {', '.join(sorted(wrong))}")


def _open_state(request: CageRequest) -> GrantSet:
    if request.policy.state is not CageState.PERSISTENT or request.state_dir is None:
        return GrantSet(())
    return open_grants((FsGrant(request.state_dir, FsMode.RW),), Protected())


def _memory_file(name: str, content: bytes) -> int:
    fd = os.memfd_create(name.replace("/", "_"), os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
