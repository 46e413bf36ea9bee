"""`kaged cage run`: options become a policy, a program runs under it, a report tells the rest."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageRequest, Spawner
from kaged.cage.configured import cage_settings
from kaged.cage.foreground import run_in_foreground
from kaged.cage.net import NetEvent, NetGate
from kaged.cage.protected.findings import Findings
from kaged.cage.report import Cause, ExitReport
from kaged.cli.output import Output, one_line
from kaged.config.settings import Settings
from kaged.diagnostics.cage_views import CageView, CageViews
from kaged.kernel.describe import not_allowed
from kaged.kernel.net import ANYWHERE, NetTarget, parse_target
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

TERMINAL: Final = ("TERM", "COLORTERM", "LANG", "LC_ALL", "NO_COLOR", "TZ")
"""Variables that say how to show text; they are passed on without being named."""

LIMITS: Final = ("memory_mb", "pids", "walltime_sec", "tmpfs_mb", "open_files", "file_size_mb")
NOWHERE: Final = NetTarget("nowhere.invalid", 1)
"""A host that never exists (RFC 2606): with it a gate watches what may connect to nothing else."""

MAX_DESTINATIONS: Final = 1_000
MAX_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class CageOptions:
    """What the command was told, as it was typed."""

    read: list[str] = field(default_factory=list[str])
    write: list[str] = field(default_factory=list[str])
    net: list[str] = field(default_factory=list[str])
    env: list[str] = field(default_factory=list[str])
    home: Path | None = None
    limits: list[str] = field(default_factory=list[str])
    learn: Path | None = None


class Connections:
    """Counts what the gate let through and what it refused, by destination."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def take(self, event: NetEvent) -> None:
        """Count one event of the gate."""
        place = f"{event.host}:{event.port or '443'}"  # who only asked for a name wants the usual
        counts = self.refused if event.name == "cage.net.denied" else self.made
        if place in counts or len(counts) < MAX_DESTINATIONS:
            counts[place] += event.count
            self.bytes[place] += event.bytes_up + event.bytes_down


def policy_of(given: CageOptions, base: CagePolicy | None, views: CageViews) -> CagePolicy:
    """Return the policy that options stand for, over the one of an agent or a file.

    Raises:
        KagedError: `cage_option_invalid`; a path is not there, or an option says nothing.
        NetTargetInvalid: a destination is none.
    """
    here = () if base is not None or given.write else (".",)
    policy = base or CagePolicy(limits=views.limits())
    grants = [_grant(path, FsMode.RO) for path in given.read]
    grants += [_grant(path, FsMode.RW) for path in (*here, *given.write)]
    env = [(name, os.environ[name]) for name in TERMINAL if name in os.environ]
    env += [_variable(one) for one in given.env]
    if given.home is not None:
        given.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        grants.append(_grant(str(given.home), FsMode.RW))
    net: tuple[NetTarget, ...] = tuple(parse_target(one) for one in given.net)
    if given.learn is not None:
        net = (*net, ANYWHERE)
    return replace(
        policy,
        fs=(*policy.fs, *grants),
        net=tuple(dict.fromkeys((*policy.net, *net))) or (NOWHERE,),
        env=(*policy.env, *env),
        limits=replace(policy.limits, **dict(_limit(one) for one in given.limits)),
    )


def run_program(
    views: CageViews,
    settings: Settings,
    base: CageView | None,
    given: CageOptions,
    program: tuple[str, ...],
    output: Output,
    *,
    quiet: bool,
) -> int:
    """Run a program in a cage, and report; return its exit code. Raises KagedError."""
    if base is not None:
        views.shell(base)  # raises for an agent without a cage
    if given.learn is not None and given.learn.exists():
        raise _invalid(f"{given.learn} exists.", "Name a new file, or remove this one.")
    policy = policy_of(given, None if base is None else base.policy, views)
    request = replace(
        views.shell(views.of(policy), program), name="cage-run", cwd=os.path.realpath(".")
    )
    if given.home is not None:
        request = replace(request, home=os.path.realpath(given.home))
    seen = Connections()
    report, findings = asyncio.run(_run(settings, request, seen))
    if given.learn is not None:
        root = Path(os.path.realpath("."))
        given.learn.write_text(_learned(policy, seen, root), encoding="utf-8")
        output.note(f"The policy that it needed is in {given.learn}. Use it with --policy.")
    if not quiet:
        _tell(report, findings, seen, output)
    return report.exit_code


@asynccontextmanager
async def caged(
    settings: Settings, request: CageRequest, on_event: Callable[[NetEvent], None]
) -> AsyncGenerator[Spawner]:
    """Yield what starts a cage without a daemon, with a gate if the request has network grants."""
    settings.places.ensure()
    gate = NetGate(on_event)
    chosen = cage_settings(settings)
    try:
        if request.policy.net:
            await gate.start(chosen.bwrap)
        spawner = Spawner(chosen, gate=gate)
        try:
            yield spawner
        finally:
            await spawner.close()
    finally:
        await gate.close()


async def _run(
    settings: Settings, request: CageRequest, seen: Connections
) -> tuple[ExitReport, Findings]:
    async with caged(settings, request, seen.take) as spawner:
        return await run_in_foreground(spawner, request)


def _grant(path: str, mode: FsMode) -> FsGrant:
    real = os.path.realpath(path)
    if not Path(real).exists():
        raise _invalid(f"{path} does not exist.", "Name a file or folder that is there.")
    return FsGrant(real, mode)


def _variable(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not name.isidentifier():
        raise _invalid(f"{text!r} is no variable.", "Write NAME or NAME=VALUE.")
    if given:
        return name, value
    if name not in os.environ:
        raise _invalid(f"The variable {name} is not set here.", f"Write {name}=VALUE.")
    return name, os.environ[name]


def _limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in LIMITS or not (value.isdecimal() and len(value) < 10 and int(value)):
        raise _invalid(f"{text!r} is no limit.", f"Write NAME=NUMBER; NAME is {', '.join(LIMITS)}.")
    return name, int(value)


def _learned(policy: CagePolicy, seen: Connections, root: Path) -> str:
    """Return the policy as a file, with the hosts that were used in place of all hosts.

    Such a file names paths below the project; the command's other paths stay options.
    """
    hosts = {one.text for one in policy.net if not one.unrestricted and one != NOWHERE}
    lines = ["# Written by `kaged cage run --learn`. Read it before you use it with --policy."]
    inside, outside = list[str](), list[str]()
    for one in policy.fs:
        path = Path(one.path)
        if path.is_relative_to(root):
            name = json.dumps(str(path.relative_to(root)))
            inside.append(f"  - {{ mode: {one.mode.value}, path: {name} }}")
        else:
            option = "--write" if one.mode is FsMode.RW else "--read"
            outside.append(f"# It was also run with {option} {shlex.quote(one.path)}")
    lines += [*outside, "fs:", *inside] if inside else [*outside, "fs: []"]
    allow = [f"    - {json.dumps(one)}" for one in sorted(hosts | set(seen.made))]
    lines += ["net:", "  allow:", *allow] if allow else ["net: { allow: [] }"]
    return "\n".join([*lines, ""])


def _tell(report: ExitReport, findings: Findings, seen: Connections, output: Output) -> None:
    """Report what is worth knowing; nothing for a program that just did its work."""
    if report.cause not in {Cause.EXIT, Cause.SIGNAL}:
        output.note(f"[kaged] The program was {report.detail}.")
    for place, count in seen.refused.most_common(MAX_SHOWN):
        times = "" if count == 1 else f" ({count} times)"
        output.note(f"[kaged] {one_line(not_allowed(f'net:{place}'))}{times}")
        output.note(f"[kaged]   fix: --net {one_line(place)}")
    for one in findings.taken_back[:MAX_SHOWN]:
        output.note(f"[kaged] taken back: {one_line(one.path)}: {one_line(one.reason)}")
    for one in findings.changed[:MAX_SHOWN]:
        output.note(f"[kaged] look at it before you trust it: {one_line(one.path)}")


def _invalid(message: str, fix: str) -> KagedError:
    return KagedError(message, code="cage_option_invalid", fix=fix)
