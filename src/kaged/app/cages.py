"""What the composition root tells cages about this daemon, and the rows they add to doctor."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from kaged.app.settings import Settings
from kaged.cage import CageSettings
from kaged.cage.net import NetProbe, probe_network
from kaged.cage.probe import probe_host
from kaged.cage.proberow import ProbeRow
from kaged.kernel.policy import CageLimits
from kaged.serve.http.ports import CheckRow, CheckStatus


def cage_settings(settings: Settings) -> CageSettings:
    """Work out where cages keep their cache and what they never show."""
    places = settings.places
    protected = (
        places.home,
        places.config_dir,
        places.state_dir,
        places.runtime_dir,
        places.plugins_dir,
        *_placed_elsewhere(settings),
    )
    bwrap = settings.daemon.value.sandbox.bwrap
    return CageSettings(
        cache_dir=places.cache_dir,
        protected=tuple(dict.fromkeys(str(path) for path in protected)),
        ask_systemd=True,
        bwrap=None if bwrap is None else str(bwrap),
    )


def _placed_elsewhere(settings: Settings) -> list[Path]:
    """Return what the configuration keeps outside the home: the plugins, the database."""
    found: list[Path] = []
    plugins = settings.daemon.value.plugins.dir
    if plugins is not None:
        found.append(plugins)
    scheme, _, place = settings.database_url.partition(":///")
    if scheme.startswith("sqlite") and place:
        found.append(Path(unquote(place.partition("?")[0])))
    return found


def plugin_limits(settings: Settings, name: str) -> CageLimits:
    """Return one plugin's limits: its own entry over the common one over the defaults."""
    sandbox = settings.daemon.value.sandbox
    common = sandbox.limits.over(CageLimits())
    own = sandbox.plugins.get(name)
    return common if own is None else own.over(common)


async def probe_cages(settings: Settings) -> list[CheckRow]:
    """Try out everything a cage needs on this machine. Call it from the main thread."""
    chosen = cage_settings(settings)
    host = [_from_host(row) for row in await probe_host(chosen)]
    network = [_from_network(row) for row in await probe_network(bwrap=chosen.bwrap)]
    return [*host, *network]


def _from_host(row: ProbeRow) -> CheckRow:
    return CheckRow(row.id, CheckStatus(row.status.value), row.protects, row.detail, row.fix)


def _from_network(row: NetProbe) -> CheckRow:
    # Without it network grants are refused or served in a narrower way, never in a wider one.
    status = CheckStatus.OK if row.ok else CheckStatus.WARN
    return CheckRow(f"cage.{row.id}", status, "network grants of cages", row.detail, row.fix)
