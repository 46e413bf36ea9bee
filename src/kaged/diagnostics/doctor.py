"""`examine`: what protects the user, what does not, and what to do about it.

Works beside a running daemon, inside one, and without one: whatever cannot be looked at becomes a
row that says so, never an exception.
"""

from __future__ import annotations

import asyncio
import os
import platform
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqlalchemy import Connection, text

from kaged.audit import AuditKeyInvalid, AuditLog, ChainKey, HeadFile, load_key
from kaged.base import Clock, Ids, KagedError, SystemClock
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.instance_lock import holder_of
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agent_limits import agent_defaults
from kaged.config.coresections import AuthMode
from kaged.config.locations import Locations
from kaged.config.settings import Settings, read_settings
from kaged.config.token_file import read_token, token_file
from kaged.store import Store

MIN_PYTHON = (3, 11)
MIN_FREE_BYTES = 200 * 1024 * 1024
VERIFY_ROWS_LIMIT = 200_000
CAGE_CHECK_LIFETIME_S = 60.0

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL
Probe = Callable[[Settings], Awaitable[Sequence[CheckRow]]]


@dataclass(frozen=True, slots=True)
class Live:
    """What a running daemon hands to its own doctor."""

    settings: Settings
    store: Store
    audit: AuditLog
    key: ChainKey
    gates: Sequence[CheckRow]
    pipeline: Callable[[], CheckRow] | None = None


async def examine(
    places: Locations,
    environ: Mapping[str, str],
    *,
    live: Live | None = None,
    probe: Probe | None = None,
) -> list[CheckRow]:
    """Look at everything and return one row each.

    Inside a daemon (`live`) the store and the trail in use are checked, otherwise the files.
    `probe` tries cages out and brings their rows.
    """
    rows = [_python(), _user(), _daemon(places, live)]
    settings, config_rows = _settings(places, environ, live)
    rows += config_rows
    if settings is not None:
        places = settings.places
        rows += [_tcp(settings), _agent_cages(settings), _agent_limits(settings)]
    rows += [_home(places), _token(places), _socket(places)]
    if settings is not None:
        rows += await _memory(settings, live)
        rows.append(_pipeline(settings, live))
        if probe is not None:
            rows += await _probed(probe, settings)
    return rows


class CageCheck:
    """Tries cages out for doctor. Trial cages cost a second, so an answer is kept for a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy = asyncio.Lock()
        self._rows: Sequence[CheckRow] = ()
        self._until_s = float("-inf")

    async def rows(self, settings: Settings) -> Sequence[CheckRow]:
        """Return the rows about cages and their network gate."""
        # Not at the top: no start should wait for what only doctor asks for.
        from kaged.diagnostics.cage_probe import probe_cages  # noqa: PLC0415  # see the line above

        async with self._busy:
            if self._clock.monotonic_s() >= self._until_s:
                self._rows = await probe_cages(settings)
                self._until_s = self._clock.monotonic_s() + CAGE_CHECK_LIFETIME_S
            return self._rows


def worst(rows: Sequence[CheckRow]) -> CheckStatus:
    """Return the worst status among the rows."""
    found = {row.status for row in rows}
    return FAIL if FAIL in found else WARN if WARN in found else OK


def _python() -> CheckRow:
    what = "The interpreter that everything here runs in."
    found = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        return CheckRow(
            "python", FAIL, what, f"Python {found}", f"Install Python {wanted} or newer."
        )
    return CheckRow("python", OK, what, f"Python {found}")


def _user() -> CheckRow:
    what = "A mistake in the daemon reaches no further than its user."
    if os.geteuid() == 0:
        return CheckRow(
            "user", WARN, what, "the daemon's user is root", "Run kaged as an ordinary user."
        )
    return CheckRow("user", OK, what, f"uid {os.geteuid()}")


def _daemon(places: Locations, live: Live | None) -> CheckRow:
    what = "The daemon that holds your projects."
    if live is not None:
        closed = [row.id for row in live.gates if row.status is not OK]
        found = f"running, pid {os.getpid()}"
        if closed:
            return CheckRow("daemon", WARN, what, f"{found}; came up with: {', '.join(closed)}",
                            "See the rows of the same names.")  # fmt: skip
        return CheckRow("daemon", OK, what, found)
    holder = holder_of(places.lock)
    if holder is None:
        return CheckRow("daemon", OK, what, "not running; commands start it when they need it")
    return CheckRow("daemon", OK, what, f"running, pid {holder.pid}")


def _settings(
    places: Locations, environ: Mapping[str, str], live: Live | None
) -> tuple[Settings | None, list[CheckRow]]:
    what = "Your settings, as the daemon understands them."
    try:
        settings = read_settings(places, environ)
    except KagedError as error:
        fix = error.fix or "Mend the lines named; until then a running daemon keeps the old ones."
        row = CheckRow("config", FAIL, what, error.message, fix)
        return (live.settings if live else None), [row]
    found = [place.name for place in (places.config_toml, places.local_toml) if place.exists()]
    if settings.warnings:
        listed = "; ".join(str(problem) for problem in settings.warnings)
        row = CheckRow("config", WARN, what, listed, "Mend the lines named.")
    else:
        row = CheckRow("config", OK, what, ", ".join(found) or "no files, all defaults")
    return settings, [row]


def _tcp(settings: Settings) -> CheckRow:
    what = "Who can reach the TCP listener, and whether it asks for a token."
    config = settings.daemon.value
    bind = config.daemon.bind
    if bind is None:
        return CheckRow("access", OK, what, "TCP is off; only the Unix socket is open")
    if config.auth.mode is AuthMode.INSECURE:
        return CheckRow(
            "access", WARN, what,
            f"{bind} in insecure mode: every program and user of this machine is let in",
            'Set [auth] mode = "secure" in config.toml.',
        )  # fmt: skip
    if not bind.loopback:
        return CheckRow(
            "access", WARN, what,
            f"{bind} can be reached from other machines, without encryption",
            "Bind to 127.0.0.1 and put a proxy with TLS in front.",
        )  # fmt: skip
    return CheckRow("access", OK, what, f"{bind}, this machine only, with a key")


def _agent_cages(settings: Settings) -> CheckRow:
    what = "Agents below the primary work inside the cages that their project gives them."
    if settings.daemon.value.sandbox.no_sandbox:
        return CheckRow(
            "agent cages",
            WARN,
            what,
            "OFF: no_sandbox is set, so every agent may do whatever you may. Plugins stay caged",
            "Take `no_sandbox` out of [sandbox], or start the daemon without --no-sandbox.",
        )
    return CheckRow("agent cages", OK, what, "on")


def _agent_limits(settings: Settings) -> CheckRow:
    what = "What a command of an agent may use, where its project says nothing else."
    defaults = agent_defaults()
    limits = settings.daemon.value.sandbox.agent_limits.over(defaults.limits)
    found = (
        f"{limits.memory_mb} MiB of memory, {limits.pids} processes, "
        f"{limits.tmpfs_mb} MiB of /tmp, files of {limits.file_size_mb} MiB; change them in "
        "[sandbox.agent_limits], or for one agent with cage.limits in its project file"
    )
    if limits.memory_mb > defaults.machine_mb:
        fix = f"Set memory_mb in [sandbox.agent_limits] below {defaults.machine_mb}."
        return CheckRow("agent limits", WARN, what, f"more than the machine has: {found}", fix)
    return CheckRow("agent limits", OK, what, found)


def _home(places: Locations) -> CheckRow:
    what = "Your data, in a folder that only you can open."
    home = places.home
    try:
        info = home.stat()
    except FileNotFoundError:
        return CheckRow("home", OK, what, f"{home} does not exist yet; the daemon makes it")
    except OSError as error:
        return CheckRow("home", FAIL, what, f"{home}: {error.strerror}", f"Make {home} readable.")
    mode = stat.S_IMODE(info.st_mode)
    if info.st_uid != os.geteuid():
        return CheckRow("home", FAIL, what, f"{home} belongs to uid {info.st_uid}",
                        f"chown {os.geteuid()} {home}, or set KAGED_HOME.")  # fmt: skip
    if not os.access(home, os.W_OK | os.X_OK):
        return CheckRow("home", FAIL, what, f"{home} cannot be written to",
                        "Make it writable, or set KAGED_HOME to a folder that is.")  # fmt: skip
    free = os.statvfs(home)
    if free.f_bavail * free.f_frsize < MIN_FREE_BYTES:
        return CheckRow("home", WARN, what, f"the disk of {home} is nearly full",
                        "Free some space; a full disk stops every change.")  # fmt: skip
    if mode & 0o022:
        return CheckRow("home", FAIL, what, f"others may change {home} (mode {mode:04o})",
                        f"chmod 700 {home}")  # fmt: skip
    if mode & 0o077:
        return CheckRow("home", WARN, what, f"others may look into {home} (mode {mode:04o})",
                        f"chmod 700 {home}")  # fmt: skip
    return CheckRow("home", OK, what, str(home))


def _token(places: Locations) -> CheckRow:
    what = "The token of the TCP listener, readable only by you."
    path = token_file(places)
    try:
        read_token(path, os.getuid())
    except FileNotFoundError:
        return CheckRow("token", OK, what, "not made yet; the daemon makes one")
    except KagedError as error:
        return CheckRow("token", FAIL, what, error.message, error.fix or "")
    except OSError as error:
        return CheckRow("token", FAIL, what, f"{path}: {error.strerror}", f"chmod 600 {path}")
    return CheckRow("token", OK, what, str(path))


def _socket(places: Locations) -> CheckRow:
    what = "The Unix socket, which only you can open."
    path = places.socket
    try:
        info = path.lstat()
    except FileNotFoundError:
        return CheckRow("socket", OK, what, "not there; it comes with the daemon")
    except OSError as error:
        return CheckRow(
            "socket", FAIL, what, f"{path}: {error.strerror}", f"Look at {path.parent}."
        )
    mode = stat.S_IMODE(info.st_mode)
    if not stat.S_ISSOCK(info.st_mode):
        return CheckRow("socket", FAIL, what, f"{path} is no socket", f"Move {path} away.")
    if mode & 0o077:
        # Whoever connects is still asked for their uid; the mode is the first of two walls.
        return CheckRow("socket", WARN, what, f"others may open {path} (mode {mode:04o})",
                        f"chmod 600 {path}")  # fmt: skip
    return CheckRow("socket", OK, what, str(path))


async def _memory(settings: Settings, live: Live | None) -> list[CheckRow]:
    """Check the store and the trail in it: those in use, or the files when nobody uses them."""
    if live is not None:
        return [await _store(live.store), await _chain(live.store, settings, live.key)]
    what = "What the daemon remembers."
    if settings.daemon.value.storage.url is None and not settings.places.database.exists():
        return [CheckRow("store", OK, what, "no database yet; the daemon makes it")]
    clock = SystemClock()
    try:
        store = await Store.open(
            settings.database_url,
            clock=clock,
            ids=Ids(clock),
            backup_dir=settings.places.backup_dir,
            read_only=True,
        )
    except KagedError as error:
        return [CheckRow("store", FAIL, what, error.message, error.fix or "")]
    try:
        return [await _store(store), await _chain(store, settings, None)]
    finally:
        await store.close()


async def _store(store: Store) -> CheckRow:
    what = "What the daemon remembers, undamaged."
    try:
        await store.check()
        version = await store.read(_sqlite_version)
    except KagedError as error:
        return CheckRow("store", FAIL, what, error.message, error.fix or "")
    status = store.status
    found = f"{status.place}, schema {status.schema_version}{version}"
    if status.last_error is not None:
        return CheckRow("store", FAIL, what, f"{found}; last write failed: {status.last_error}",
                        "Free disk space or make the database writable.")  # fmt: skip
    return CheckRow("store", OK, what, found)


def _sqlite_version(conn: Connection) -> str:
    if conn.dialect.name != "sqlite":
        return f", {conn.dialect.name}"
    return f", SQLite {conn.execute(text('select sqlite_version()')).scalar()}"


async def _chain(store: Store, settings: Settings, key: ChainKey | None) -> CheckRow:
    what = "The record of everything that was done, unchanged since it was written."
    head_file = HeadFile(settings.audit_head)
    try:
        page = await store.audit.query(limit=1)
        rows = page.items[0].seq if page.items else 0
        if key is None:
            key = load_key(settings.places.audit_key)
        if rows > VERIFY_ROWS_LIMIT:
            return CheckRow("audit", OK, what, f"{rows} events; too many to check each time",
                            "Run `kaged audit verify` now and then.")  # fmt: skip
        report = await store.audit.verify(key, head_file)
    except FileNotFoundError:
        return CheckRow("audit", FAIL, what, f"the key {settings.places.audit_key} is missing",
                        "Restore it from your backup.")  # fmt: skip
    except (AuditKeyInvalid, KagedError) as error:
        return CheckRow("audit", FAIL, what, error.message, error.fix or "")
    if not report.ok:
        first = report.findings[0].detail
        return CheckRow("audit", FAIL, what, f"{report.total} findings, the first: {first}",
                        "Run `kaged audit verify` and compare with your backups.")  # fmt: skip
    return CheckRow("audit", OK, what, f"{report.rows} events, all as they were written")


def _pipeline(settings: Settings, live: Live | None) -> CheckRow:
    # Not at the top: it is read only here and where a pipeline runs.
    from kaged.pipeline.policy_pipeline import file_row  # noqa: PLC0415  # see the line above

    if live is not None and live.pipeline is not None:
        return live.pipeline()
    return file_row(settings)


async def _probed(probe: Probe, settings: Settings) -> Sequence[CheckRow]:
    try:
        return await probe(settings)
    except Exception as error:  # noqa: BLE001  # boundary: a probe that breaks is itself a finding
        found = f"{type(error).__name__}: {error}"
        fix = "This is a bug; report it with the output of `kaged doctor --json`."
        return [CheckRow("probe", FAIL, "A check that could not be made.", found, fix)]
