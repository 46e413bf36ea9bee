"""Starting a daemon in the background and stopping it, from the outside.

This is the one process that kaged starts without `kaged.cage`: the daemon itself, which is the host
and not a guest. It is started with an argument list of our own, never with anything from outside.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kaged.base import Clock, JsonObject, KagedError
from kaged.base.instance_lock import Holder, holder_of
from kaged.base.ready_signal import MAX_READY_BYTES, READY_FD_VARIABLE
from kaged.config.locations import Locations, LocationUnsafe, ensure_private_dir

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 5.0
TAIL_BYTES = 2000


def start_detached(places: Locations, environ: Mapping[str, str]) -> None:
    """Start a daemon that outlives this process, and wait until it is ready.

    Its log goes to `daemon.log`; `daemon.crash` takes what it prints besides, which is nothing
    unless the interpreter itself fails.

    Raises:
        KagedError: `daemon_start_failed`; it did not start; `data.cause` is the code of the reason.
    """
    try:
        ensure_private_dir(places.state_dir)
        ensure_private_dir(places.logs_dir)
    except LocationUnsafe as error:
        raise KagedError(
            error.message, code="daemon_start_failed", fix=error.fix, cause=error.code
        ) from error
    log_file, crash_log = places.logs_dir / "daemon.log", places.logs_dir / "daemon.crash"
    reader, writer = os.pipe()
    try:
        pid = _spawn(writer, crash_log, log_file, environ)
    finally:
        os.close(writer)
    try:
        message = _await_message(reader)
    finally:
        os.close(reader)
    if message is None:
        raise KagedError(
            f"The daemon (pid {pid}) ended or hung without a message. {_tail(crash_log)}".strip(),
            code="daemon_start_failed",
            fix=f"See {log_file} and {crash_log}, or run `kaged daemon run` to see the error.",
            cause="daemon_start_failed",
        )
    if message.get("ready") is True:
        return
    said = message.get("error")
    detail: Mapping[str, Any] = said if isinstance(said, dict) else {}
    data = detail.get("data")
    fix = data.get("fix") if isinstance(data, dict) else None
    raise KagedError(
        str(detail.get("message", "The daemon did not start.")),
        code="daemon_start_failed",
        fix=str(fix) if fix else None,
        cause=str(detail.get("code", "daemon_start_failed")),
    )


def stop_daemon(lock: Path, clock: Clock, *, force: bool = False) -> Holder | None:
    """Ask the daemon that holds `lock` to end and wait until it has. None when there is none.

    Raises:
        KagedError: `daemon_stuck`; it did not end in time (and `force` was not set).
    """
    holder = holder_of(lock)
    if holder is None or holder.pid == 0:
        return None
    try:
        pidfd = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return None
    try:
        # The descriptor names one process for good. If the lock still has the same holder now,
        # that process is the daemon and no other that was given its number.
        if holder_of(lock) != holder:
            return holder
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if _ended(pidfd, clock, STOP_TIMEOUT_S):
            return holder
        if force:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if _ended(pidfd, clock, KILL_TIMEOUT_S):
                return holder
    except ProcessLookupError:
        return holder
    finally:
        os.close(pidfd)
    raise KagedError(
        f"The daemon (pid {holder.pid}) did not end within {STOP_TIMEOUT_S:.0f} seconds.",
        code="daemon_stuck",
        fix="Kill it with `kaged daemon stop --force`. Its log has the reason.",
        pid=holder.pid,
    )


def wait_until(holds: Callable[[], bool], clock: Clock, timeout_s: float = START_TIMEOUT_S) -> bool:
    """Poll until `holds` is true or the time is up."""
    deadline = clock.monotonic_s() + timeout_s
    while not holds():
        if clock.monotonic_s() >= deadline:
            return False
        select.select([], [], [], 0.05)
    return True


def _spawn(writer: int, crash_log: Path, log_file: Path, environ: Mapping[str, str]) -> int:
    # -P keeps the current folder, which may be anybody's project, off the module path.
    argv = [sys.executable, "-P", "-m", "kaged.cli", "daemon", "run", "--log-file", str(log_file)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    # A copy that the child inherits, above the three standard ones even if those were closed.
    inherited = fcntl.fcntl(writer, fcntl.F_DUPFD, 3)
    try:
        return os.posix_spawn(  # noqa: TID251 - the daemon itself; see the module docstring
            sys.executable,
            argv,
            {**environ, READY_FD_VARIABLE: str(inherited)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(crash_log), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(inherited)


def _await_message(reader: int) -> JsonObject | None:
    raw = b""
    # The pipe ends when the daemon does, so waiting for more data can last no longer than it.
    while not raw.endswith(b"\n") and len(raw) <= MAX_READY_BYTES:
        ready, _, _ = select.select([reader], [], [], START_TIMEOUT_S)
        chunk = os.read(reader, 4096) if ready else b""
        if not chunk:
            break
        raw += chunk
    try:
        message = json.loads(raw)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _ended(pidfd: int, clock: Clock, timeout_s: float) -> bool:
    deadline = clock.monotonic_s() + timeout_s
    while (left := deadline - clock.monotonic_s()) > 0:
        if select.select([pidfd], [], [], left)[0]:
            return True
    return False


def _tail(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line for line in text[-TAIL_BYTES:].splitlines() if line.strip()]
    return lines[-1] if lines else ""
