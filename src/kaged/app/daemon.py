"""`run_daemon`: from the first gate to the last byte; signals, readiness, reload and the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from kaged import __version__
from kaged.app.wiring import Daemon, build
from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import Clock, JsonObject, JsonValue, KagedError, SystemClock
from kaged.base.foreign import describe_error, run_to_end
from kaged.base.log import get_logger
from kaged.base.open_files import raise_open_files
from kaged.base.ready_signal import ReadySignal
from kaged.base.signals import unmute_for_children
from kaged.config.coresections import LogLevel
from kaged.config.locations import Locations
from kaged.config.log_setup import configure_logging
from kaged.config.problems import ConfigFileInvalid
from kaged.config.settings import read_settings
from kaged.diagnostics.daemon_state import needs_restart
from kaged.diagnostics.gates import Gates
from kaged.serve.http.errors import error_body

_log = get_logger("kaged.daemon")


NUMBER_DIGITS = 640
"""How long a number in decimal may be: to read one takes time that grows with the square of it."""
SWITCH_S = 0.001
"""How long one thread may keep the interpreter from the event loop; Python's own figure is 5 ms.

The audit log's writer and the threads of a scan each keep the loop waiting for their full share.
"""
READERS_GONE_S = 1.5
"""How long the daemon's end waits for readers of events to be told of it."""


def run_daemon(
    places: Locations,
    environ: Mapping[str, str],
    ready: ReadySignal,
    *,
    log_file: Path | None = None,
    clock: Clock | None = None,
) -> int:
    """Run the daemon until a signal ends it. Gives the exit code.

    Raises:
        KagedError: it could not start; `ready` has been told.
    """
    harden()
    log_file = None if log_file is None else log_file.absolute()
    try:
        _configure_logs(places, environ, log_file)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            life = _Run(places, environ, ready, log_file, clock or SystemClock())
            return run_to_end(runner, life.main, lambda: life.task, _foreign_exit)
    except KagedError as error:
        ready.failed(error_body(error, None))
        raise
    except Exception as error:
        # Boundary: the process. Whoever waits for the start is told before it ends.
        ready.failed(
            error_body(KagedError(f"{type(error).__name__}: {error}", code="internal"), None)
        )
        raise


def _settle() -> None:
    # Start-up made objects that live as long as the process: keep the collector off them.
    gc.freeze()
    gc.enable()
    _log.info("daemon.opened")


def harden() -> None:
    """Make this process a good daemon: private files, no core dumps, no folder."""
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_S)
    sys.set_int_max_str_digits(NUMBER_DIGITS)
    unmute_for_children()
    raise_open_files()
    # A core file would hold tokens and keys.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir("/")


def _configure_logs(places: Locations, environ: Mapping[str, str], log_file: Path | None) -> None:
    """Set the log up as the configuration says, or plainly when it cannot be read (yet)."""
    try:
        section = read_settings(places, environ).daemon.value.logging
    except KagedError:
        configure_logging(LogLevel.INFO, log_file=log_file)
    else:
        configure_logging(section.level, section.format, log_file or section.file)


def _foreign_exit(error: BaseException) -> None:
    _log.error("daemon.foreign_exit", error=describe_error(error, as_repr=True))


class _Run:
    """One life of a daemon."""

    def __init__(
        self,
        places: Locations,
        environ: Mapping[str, str],
        ready: ReadySignal,
        log_file: Path | None,
        clock: Clock,
    ) -> None:
        self._places = places
        self._environ = environ
        self._ready = ready
        self._log_file = log_file
        self._clock = clock
        self._ending = asyncio.Event()
        self._reason = "asked"
        self._signal: str | None = None
        self._reloading = asyncio.Lock()
        self.task: asyncio.Task[int] | None = None
        """The life itself, from the moment on at which it catches signals."""

    async def main(self) -> int:
        began_s = self._clock.monotonic_s()
        async with AsyncExitStack() as closing:
            daemon = await build(
                self._places, self._environ, clock=self._clock, gates=Gates(), closing=closing
            )
            self._catch_signals(daemon)
            self.task = asyncio.current_task()
            serving = daemon.tasks.start(daemon.server.serve(list(daemon.sockets)), "http")
            serving.add_done_callback(lambda _: self._end("server ended"))
            await daemon.server.listening.wait()
            took_ms = round((self._clock.monotonic_s() - began_s) * 1000, 1)
            await self._announce(daemon, took_ms)
            daemon.startup.start(_settle, lambda: self._end("did not open"))
            await self._ending.wait()
            await self._wind_down(daemon, serving)
        if daemon.startup.failure is not None:
            raise daemon.startup.failure
        return 0

    async def _announce(self, daemon: Daemon, took_ms: float) -> None:
        state = daemon.state
        await self._record(
            daemon,
            "daemon.started",
            {
                "version": __version__,
                "pid": os.getpid(),
                "home": str(state.settings.places.home),
                "bind": state.url,
                "auth_mode": state.mode.value,
                "duration_ms": took_ms,
            },
        )
        self._ready.ready(
            {"pid": os.getpid(), "socket": str(state.settings.places.socket), "url": state.url}
        )
        _log.info("daemon.ready", pid=os.getpid(), url=state.url, ms=took_ms)

    async def _wind_down(self, daemon: Daemon, serving: asyncio.Task[None]) -> None:
        """Stop taking work, let what runs end, and put the end on record as the last event."""
        self._ready.stopping()
        daemon.state.stopping = True
        _log.info("daemon.stopping", reason=self._reason)
        daemon.services.hub.publish("daemon", "daemon.stopping", {"reason": self._reason})
        daemon.services.hub.close()
        # The server would close their streams with a code of its own, and without the reason.
        await daemon.services.hub.readers_gone(READERS_GONE_S)
        daemon.server.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await self._record(
            daemon,
            "daemon.stopped",
            {
                "reason": self._reason,
                "pid": os.getpid(),
                "uptime_ms": round(daemon.state.uptime_s * 1000),
                "signal": self._signal,
            },
        )

    async def _record(self, daemon: Daemon, name: str, data: JsonObject) -> None:
        """Put a turn of the daemon's own life on record, on disk when this returns.

        A trail that cannot be written does not keep the daemon from living or ending: reads go on
        without it, changes are refused, and the log says what is missing.
        """
        try:
            await daemon.services.audit.record(AuditEvent(name, data), durable=True)
        except AuditUnavailable as error:
            _log.error("audit.not_recorded", name=name, error=error.message)

    def _catch_signals(self, daemon: Daemon) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_end_signal, daemon, number)
        loop.add_signal_handler(
            signal.SIGHUP, lambda: daemon.tasks.start(self._reload(daemon), "reload")
        )

    def _on_end_signal(self, daemon: Daemon, number: signal.Signals) -> None:
        if self._ending.is_set():
            # Asked twice: no more waiting for connections.
            daemon.server.force_exit = True
        self._signal = number.name
        self._end("signal")

    def _end(self, reason: str) -> None:
        if not self._ending.is_set():
            self._reason = reason
            self._ending.set()

    async def _reload(self, daemon: Daemon) -> None:
        """Read the configuration again; with errors in it the old one stays in force."""
        async with self._reloading:
            self._ready.reloading()
            state = daemon.state
            problems: list[JsonValue] = []
            changed: list[JsonValue] = []
            try:
                fresh = await asyncio.to_thread(read_settings, self._places, self._environ)
            except ConfigFileInvalid as error:
                problems = [str(problem) for problem in error.problems]
                _log.error("config.invalid", problems=problems)
            else:
                old, new = state.settings.daemon.value, fresh.daemon.value
                changed = [
                    name for name in type(new).__dataclass_fields__
                    if getattr(old, name) != getattr(new, name)
                ]  # fmt: skip
                state.settings = fresh
                daemon.services.sign_in.tell_change()
                section = new.logging
                try:
                    log_file = self._log_file or section.file
                    configure_logging(section.level, section.format, log_file)
                except OSError as error:  # the log goes on where it was
                    problems.append(f"logging.file cannot be written: {error}")
                for key in needs_restart(state):
                    _log.warning("config.needs_restart", key=key)
                problems += [str(problem) for problem in await daemon.startup.reload()]
            facts: JsonObject = {"changed": changed, "problems": problems}
            await self._record(daemon, "daemon.config_reloaded", facts)
            self._ready.reloaded()
