"""`kage.exec`: one program, no shell, in a cage of its own on the real workdir."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.realpath import real_path
from kaged.cage import CageKind, CageProcess, CageRequest, Cause, HostMount, Programs, Spawner
from kaged.cage.collect import Collected, collect
from kaged.cage.compile import SYSTEM_PATH
from kaged.cage.layout import SCRATCH
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode
from kaged.lua.errors import PlaceRefused, ScriptCallRefused
from kaged.lua.files import place_in_workdir
from kaged.lua.gitsettings import cage_config, operator_settings
from kaged.lua.repository import Repository
from kaged.lua.values import from_bytes, shown
from kaged.workspace import Workspace

KEPT_BYTES: Final = 1024 * 1024
DEFAULT_S: Final = 30.0
MAX_S: Final = 3600.0
MAX_ARGS: Final = 4096
MAX_TEXT: Final = 128 * 1024
LIMITS: Final = CageLimits(memory_mb=2048, pids=256, tmpfs_mb=256, file_size_mb=4096)
_GIT_CONFIG: Final = "/opt/kaged/gitconfig"
_HEAD_BYTES: Final = 4
_NOT_STARTED: Final = b"bwrap: execvp "


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """One program to run, read from a script's table."""

    cmd: str
    args: tuple[str, ...]
    cwd: str | None
    timeout_s: float

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> ExecSpec:
        """Read a script's table. Raises ScriptCallRefused and names the field."""
        cmd, args = params.get("cmd"), params.get("args")
        if not isinstance(cmd, str) or not cmd or "\0" in cmd:
            raise _refuse("cmd must be a non-empty string without NUL")
        if args is None or args == {}:
            args = []
        if not isinstance(args, list) or len(args) > MAX_ARGS:
            raise _refuse("args must be a list of strings")
        texts = [one for one in args if isinstance(one, str) and "\0" not in one]
        if len(texts) != len(args) or any(len(one) > MAX_TEXT for one in texts):
            raise _refuse("args must be a list of strings without NUL")
        cwd = params.get("cwd")
        if cwd is not None and not isinstance(cwd, str):
            raise _refuse("cwd must be a string")
        seconds = params.get("timeout_secs", DEFAULT_S)
        if seconds is None:
            seconds = DEFAULT_S
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 1:
            raise _refuse("timeout_secs must be a number of at least 1")
        return cls(cmd, tuple(texts), cwd, min(float(seconds), MAX_S))


class ScriptPrograms:
    """Runs programs for the scripts of one project."""

    def __init__(
        self, spawner: Spawner, workspace: Workspace, environ: Mapping[str, str], project_id: str
    ) -> None:
        self._spawner = spawner
        self._workspace = workspace
        self._environ = environ
        self._repository = Repository.find(workspace.root)
        self._config = spawner.settings.cache_dir / f"gitconfig-{project_id}"

    async def run(self, stem: str, spec: ExecSpec) -> JsonObject:
        """Run a program to its end or its deadline; returns the script's table.

        Raises:
            ScriptCallRefused: it did not start; the words begin with `kage.exec:`.
        """
        cwd = self._cwd(spec.cwd)
        program = find_program(spec.cmd, cwd, self._workspace.root)
        request = self._request(stem, spec, cwd, program)
        before = self._repository.before()
        try:
            process = await self._spawner.spawn(request)
        except KagedError as error:
            raise _refuse(f"spawn {shown(spec.cmd)}: {error.message}") from error
        try:
            return await _finish(process, spec)
        finally:
            self._repository.after(before)

    def _cwd(self, text: str | None) -> str:
        if text is None or text in {"", "."}:
            return self._workspace.root
        try:
            place = place_in_workdir(self._workspace, text)
        except PlaceRefused as error:
            raise PlaceRefused(f"kage.exec: cwd {error.message}") from error
        if not Path(place.resolved).is_dir():
            raise _refuse(f"cwd {shown(text)}: is no directory")
        return place.resolved

    def _request(self, stem: str, spec: ExecSpec, cwd: str, program: str) -> CageRequest:
        self._write_config()
        copied = [
            (name, value)
            for name, value in self._environ.items()
            if name in {"LANG", "TERM"} or name.startswith("LC_")
        ]
        root = FsGrant(self._workspace.root, FsMode.RW)
        return CageRequest(
            name=f"lua-exec:{stem}",
            policy=CagePolicy(fs=(root, *self._repository.grants()), limits=LIMITS),
            command=(program, *spec.args),
            kind=CageKind.WORKER,
            programs=Programs.SYSTEM,
            cwd=cwd,
            env=tuple(copied),
            fixed_env=(
                ("HOME", _home(self._workspace.root)),
                ("GIT_CONFIG_GLOBAL", _GIT_CONFIG),
                ("GIT_CONFIG_NOSYSTEM", "1"),
            ),
            mounts=(HostMount(str(self._config), _GIT_CONFIG),),
        )

    def _write_config(self) -> None:
        text = cage_config(operator_settings(self._environ), self._repository.safe)
        try:
            if self._config.read_text(encoding="utf-8") == text:
                return
        except OSError:
            self._config.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._config.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o644)  # cages of other users read it, too
        fresh.replace(self._config)


def _home(root: str) -> str:
    """Return the private, empty, writable directory of a cage that does not hold the workdir."""
    return "/dev/shm" if root.startswith(f"{SCRATCH}/") else SCRATCH  # noqa: S108 - the cage's own


def find_program(cmd: str, cwd: str, root: str) -> str:
    """Find a program as the cage will see it: in the system, or in the workdir.

    Raises:
        ScriptCallRefused: there is none of that name in its view, or it is no program.
    """
    if "/" in cmd:
        candidates = [posixpath.normpath(posixpath.join(cwd, cmd))]
    else:
        candidates = [f"{folder}/{cmd}" for folder in SYSTEM_PATH.split(":")]
    for path in candidates:
        try:
            real = real_path(path)
        except OSError:
            continue
        if not (real.startswith(("/usr/", f"{root}/")) and Path(real).is_file()):
            continue
        if not os.access(real, os.X_OK):
            raise _refuse(f"spawn {shown(cmd)}: it is not executable")
        with Path(real).open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head[:2] != b"#!" and head != b"\x7fELF":
            raise _refuse(f"spawn {shown(cmd)}: it is no program")
        return path
    raise _refuse(f"spawn {shown(cmd)}: no such program")


async def _finish(process: CageProcess, spec: ExecSpec) -> JsonObject:
    expired = False

    def out_of_time() -> None:
        nonlocal expired
        expired = True
        process.kill()

    timer = asyncio.get_running_loop().call_later(spec.timeout_s, out_of_time)
    try:
        found: Collected = await collect(process, b"", KEPT_BYTES)
    finally:
        timer.cancel()
    report = found.report
    ended_by_host = expired or report.cause not in {Cause.EXIT, Cause.SIGNAL}
    if report.exit_code == 1 and found.stderr.startswith(_NOT_STARTED) and not found.stdout:
        # bwrap's own words: the program was never there to say anything.
        reason = shown(from_bytes(found.stderr)).strip().rpartition(": ")[2]
        raise _refuse(f"spawn {shown(spec.cmd)}: {reason}")
    return {
        "code": -1 if ended_by_host else report.exit_code,
        "stdout": from_bytes(found.stdout),
        "stderr": from_bytes(found.stderr),
        "timed_out": expired,
        "truncated": found.cut,
    }


def _refuse(words: str) -> ScriptCallRefused:
    return ScriptCallRefused(f"kage.exec: {words}")
