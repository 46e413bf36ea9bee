"""Configuration: `Project`, `DaemonConfig`, `LocalConfig`, `Manifest`, `Locations`, `AgentTree`.

A file becomes a frozen value in one walk: `files` reads it without trusting it, `yamldoc` and
`tomldoc` turn it into `Node`s that remember their lines, `shapes` and `records` read nodes into
types and note every `Problem`, and `reading` returns `Loaded` or raises `ConfigFileInvalid`.
`editing` goes the other way and changes a file byte by byte.

Names are looked up when they are first used: a command that only needs `Locations` does not pay
for the project file's types.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaged.config.agents import (
        AgentTree,
        ResolvedAgent,
        ResolvedPlugin,
        Sourced,
        resolve_agents,
    )
    from kaged.config.daemonconfig import DaemonConfig, load_daemon_config
    from kaged.config.describe import describe
    from kaged.config.editing import edit_toml, edit_yaml
    from kaged.config.localconfig import LocalConfig, load_local_config
    from kaged.config.locations import Locations, LocationUnsafe
    from kaged.config.manifest import Manifest, load_manifest, parse_manifest
    from kaged.config.pluginwords import AgentPath
    from kaged.config.problems import ConfigFileInvalid, Origin, Problem, Severity
    from kaged.config.project import AgentSpec, Project, load_project, parse_project
    from kaged.config.providers import plan_providers
    from kaged.config.reading import Loaded
    from kaged.config.scaffold import InitReport, init_project
    from kaged.config.schemas import schemas
    from kaged.config.secret import Secret
    from kaged.config.serverchoice import choose_dap_adapters, choose_lsp_servers
    from kaged.config.yamledit import EditRefused

_MODULES = {
    "agents": ("AgentTree", "ResolvedAgent", "ResolvedPlugin", "Sourced", "resolve_agents"),
    "atomic": (),
    "daemonconfig": ("DaemonConfig", "load_daemon_config"),
    "describe": ("describe",),
    "editing": ("edit_toml", "edit_yaml"),
    "localconfig": ("LocalConfig", "load_local_config"),
    "locations": (
        "LocationUnsafe",
        "Locations",
    ),
    "manifest": ("Manifest", "load_manifest", "parse_manifest"),
    "pluginwords": ("AgentPath",),
    "problems": ("ConfigFileInvalid", "Origin", "Problem", "Severity"),
    "project": ("AgentSpec", "Project", "load_project", "parse_project"),
    "providers": ("plan_providers",),
    "reading": ("Loaded",),
    "scaffold": ("InitReport", "init_project"),
    "schemas": ("schemas",),
    "secret": ("Secret",),
    "serverchoice": ("choose_dap_adapters", "choose_lsp_servers"),
    "yamledit": ("EditRefused",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import the module that a name lives in, the first time the name is used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package as a module that keeps its names.

    Importing the submodule `describe` would otherwise put the module in place of the function
    `describe`, depending on who imports what first.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


__all__ = [
    "AgentPath",
    "AgentSpec",
    "AgentTree",
    "ConfigFileInvalid",
    "DaemonConfig",
    "EditRefused",
    "InitReport",
    "Loaded",
    "LocalConfig",
    "LocationUnsafe",
    "Locations",
    "Manifest",
    "Origin",
    "Problem",
    "Project",
    "ResolvedAgent",
    "ResolvedPlugin",
    "Secret",
    "Severity",
    "Sourced",
    "choose_dap_adapters",
    "choose_lsp_servers",
    "describe",
    "edit_toml",
    "edit_yaml",
    "init_project",
    "load_daemon_config",
    "load_local_config",
    "load_manifest",
    "load_project",
    "parse_manifest",
    "parse_project",
    "plan_providers",
    "resolve_agents",
    "schemas",
]
