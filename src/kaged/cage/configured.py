"""What `config.toml` says about cages: what they never show, where their cache is, limits."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from kaged.cage.settings import CageSettings
from kaged.config.settings import Settings
from kaged.config.toolsettings import ReviewWord
from kaged.kernel.policy import CageLimits


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
    sandbox = settings.daemon.value.sandbox
    tools = settings.daemon.value.tools
    return CageSettings(
        cache_dir=places.cache_dir,
        protected=tuple(dict.fromkeys(str(path) for path in protected)),
        ask_systemd=True,
        require_limits=sandbox.require_limits,
        bwrap=None if sandbox.bwrap is None else str(sandbox.bwrap),
        allow_protected=tuple((one.project, one.path) for one in tools.allow_protected),
        refuse_reviewed=tools.reviewed_files is ReviewWord.REFUSE,
        kept_in=places.state_dir,
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
