"""`Locations`: where everything of the operator's lies, by the XDG rules or under `KAGED_HOME`."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass

APP: Final = "kaged"
MAX_SOCKET_PATH_BYTES: Final = 107
"""The longest path that a Unix socket can be bound to."""
SYSTEM_CACHE: Final = Path("/var/cache") / APP
"""Where root keeps what the users of its cages must reach; nobody else can enter root's home."""


class LocationUnsafe(KagedError):
    """A directory cannot be trusted with the operator's files."""

    code = "location_unsafe"


@dataclass(frozen=True, slots=True)
class Locations:
    """Paths of files and directories; all absolute, none of them made by looking at them.

    `home` is where data lies (`data_dir` is the same). With `KAGED_HOME` everything lies below it;
    otherwise configuration, data, logs and sockets go where the XDG rules put them. `cache_dir`
    holds nothing secret and nothing that cannot be made again; root's lies outside its home.
    """

    home: Path
    config_dir: Path
    config_toml: Path
    local_toml: Path
    data_dir: Path
    cache_dir: Path
    state_dir: Path
    runtime_dir: Path
    socket: Path
    database: Path
    lock: Path
    audit_key: Path
    plugins_dir: Path
    plugin_data_dir: Path
    lua_dir: Path
    logs_dir: Path
    backup_dir: Path

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Locations:
        """Find the locations from environment variables alone; creates nothing.

        Raises:
            KagedError: `locations_unknown`; `KAGED_HOME` is relative, there is no home directory,
                or the path of
                the socket would be too long.
        """
        own = environ.get("KAGED_HOME", "")
        if own:
            home = Path(own)
            if not home.is_absolute():
                raise KagedError(
                    f"KAGED_HOME must be an absolute path, not {own!r}",
                    code="locations_unknown",
                    fix="set KAGED_HOME to a full path",
                )
            return cls._from_dirs(home, home, home, home / "run", home / "cache")
        user_home = _user_home(environ)
        config = _xdg(environ, "XDG_CONFIG_HOME", user_home / ".config")
        data = _xdg(environ, "XDG_DATA_HOME", user_home / ".local" / "share")
        state = _xdg(environ, "XDG_STATE_HOME", user_home / ".local" / "state")
        # Without a runtime directory of the session the socket goes to a private place of ours.
        runtime = _xdg(environ, "XDG_RUNTIME_DIR", state / "run")
        return cls._from_dirs(config, data, state, runtime, _cache(environ, user_home))

    @classmethod
    def _from_dirs(
        cls, config: Path, data: Path, state: Path, runtime: Path, cache: Path
    ) -> Locations:
        found = cls(
            config_dir=config,
            config_toml=config / "config.toml",
            local_toml=config / "local.toml",
            cache_dir=cache,
            state_dir=state,
            runtime_dir=runtime,
            socket=runtime / "kaged.sock",
            lock=runtime / "daemon.lock",
            lua_dir=config / "lua",
            logs_dir=state / "logs",
            **_data_paths(data),
        )
        length = len(os.fsencode(found.socket))
        if length > MAX_SOCKET_PATH_BYTES:
            raise KagedError(
                f"the path of the socket is too long ({length} bytes): {found.socket}",
                code="locations_unknown",
                fix="set KAGED_HOME or XDG_RUNTIME_DIR to a shorter path",
            )
        return found

    def with_home(self, home: Path) -> Locations:
        """Move the data elsewhere, as `[daemon] home` asks; configuration and socket stay."""
        return replace(self, **_data_paths(home))

    def ensure(self) -> None:
        """Make the directories that are missing, for their owner only, and check the others.

        Raises:
            LocationUnsafe: one is not a directory, belongs to somebody else, or may be changed by
                others.
        """
        wanted = (
            self.config_dir,
            self.data_dir,
            self.state_dir,
            self.runtime_dir,
            self.plugins_dir,
            self.plugin_data_dir,
            self.logs_dir,
            self.backup_dir,
        )
        for path in dict.fromkeys(wanted):
            ensure_private_dir(path)


def _data_paths(home: Path) -> dict[str, Path]:
    """Return the locations that move together with the data."""
    return {
        "home": home,
        "data_dir": home,
        "database": home / "kaged.db",
        "audit_key": home / "audit.key",
        "plugins_dir": home / "plugins",
        "plugin_data_dir": home / "plugin-data",
        "backup_dir": home / "backups",
    }


def ensure_private_dir(path: Path) -> None:
    """Make a directory with mode 0700, or check that an existing one can be trusted.

    Raises:
        LocationUnsafe: it cannot be made, or is not ours alone to change.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise LocationUnsafe(
            f"{path} cannot be made: {error.strerror}", fix="check the path and its permissions"
        ) from error
    try:
        info = path.stat()
    except OSError as error:
        raise LocationUnsafe(
            f"{path} cannot be looked at: {error.strerror}", fix="remove the broken link"
        ) from error
    if not stat.S_ISDIR(info.st_mode):
        raise LocationUnsafe(f"{path} is not a directory", fix="remove what is there")
    if info.st_uid != os.geteuid():
        raise LocationUnsafe(
            f"{path} belongs to user {info.st_uid}, not to the user that runs kaged",
            fix=f"chown {os.geteuid()} {path}, or use another directory",
        )
    if info.st_mode & 0o022:
        raise LocationUnsafe(
            f"{path} may be changed by others (mode {stat.S_IMODE(info.st_mode):04o})",
            fix=f"chmod go-w {path}",
        )


def _user_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            home = ""
    if not home.startswith("/"):
        raise KagedError(
            "there is no home directory to keep files in",
            code="locations_unknown",
            fix="set KAGED_HOME to a full path",
        )
    return Path(home)


def _cache(environ: Mapping[str, str], user_home: Path) -> Path:
    # A root that was given another home is a container or a test, and keeps to that home.
    if not environ.get("XDG_CACHE_HOME") and os.geteuid() == 0 and user_home == _own_home():
        return SYSTEM_CACHE
    return _xdg(environ, "XDG_CACHE_HOME", user_home / ".cache")


def _own_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None


def _xdg(environ: Mapping[str, str], name: str, fallback: Path) -> Path:
    # The XDG rules say to ignore relative paths.
    value = environ.get(name, "")
    return (Path(value) if value.startswith("/") else fallback) / APP


def sqlite_url(path: Path) -> str:
    """Write the storage URL of a SQLite file, whatever characters its path has."""
    return f"sqlite:///{quote(str(path), safe=' +/')}"
