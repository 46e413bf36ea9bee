"""`Settings`: the operator's two files and the places they lead to, read together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kaged.base.lazy_dataclass import dataclass
from kaged.config.daemonconfig import DaemonConfig, load_daemon_config
from kaged.config.localconfig import LocalConfig, load_local_config
from kaged.config.locations import Locations, sqlite_url
from kaged.config.problems import Problem
from kaged.config.reading import Loaded

NO_SANDBOX_VARIABLE = "KAGED_NO_SANDBOX"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator wrote, and where everything lies because of it."""

    places: Locations
    daemon: Loaded[DaemonConfig]
    local: Loaded[LocalConfig]

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What was noticed in either file."""
        return (*self.daemon.warnings, *self.local.warnings)

    @property
    def database_url(self) -> str:
        """The database: the configured one, or SQLite in the home."""
        url = self.daemon.value.storage.url
        return sqlite_url(self.places.database) if url is None else url.reveal()

    @property
    def audit_head(self) -> Path:
        """Where the newest anchor of the audit chain is kept, outside the database."""
        return self.places.data_dir / "audit.head"

    @property
    def vault_key(self) -> Path:
        """Where the key of people's accounts is kept, unless systemd or a keyring has it."""
        return self.places.data_dir / "vault.key"

    @property
    def vault_replacement_key(self) -> Path:
        """Where the key is kept that accounts are linked with while that of the vault is gone."""
        return self.places.data_dir / "vault.replacement.key"

    @property
    def home_lock(self) -> Path:
        """The lock of the data; `places.lock` is the one of the socket."""
        return self.places.data_dir / "daemon.lock"


def read_settings(places: Locations, environ: Mapping[str, str]) -> Settings:
    """Read `config.toml` and `local.toml`; missing files are empty ones.

    `KAGED_NO_SANDBOX`, which `--no-sandbox` sets, counts as `[sandbox] no_sandbox = true`.

    Raises:
        ConfigInvalid: with every problem of the file that cannot be used.
    """
    daemon = load_daemon_config(places.config_toml, environ)
    local = load_local_config(places.local_toml, environ)
    if environ.get(NO_SANDBOX_VARIABLE):
        value = daemon.value
        value = replace(value, sandbox=replace(value.sandbox, no_sandbox=True))
        daemon = replace(daemon, value=value)
    home = daemon.value.daemon.home
    return Settings(places if home is None else places.with_home(home), daemon, local)
