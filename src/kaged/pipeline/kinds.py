"""How a plugin of some kind comes to life: `PluginKind`, and the trusted class in our process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from kaged.base import KagedError
from kaged.pipeline.binding import HookCall, bind_hook
from kaged.pipeline.cpex_compat import install_cpex_compat
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.settings import PluginConfig

BLOCKED_MODULES = frozenset(
    {
        "os",
        "sys",
        "subprocess",
        "shutil",
        "socket",
        "http.server",
        "ctypes",
        "importlib",
        "builtins",
        "code",
        "codeop",
        "compileall",
        "runpy",
    }
)

_ELSEWHERE = {
    "external": "no MCP client was given to this pipeline",
    "isolated_venv": "an environment of its own is not made here",
}


class StartedPlugin(Protocol):
    """A plugin that is alive, wherever it runs."""

    def bind(self, hook: str) -> HookCall:
        """Return what to call for a hook. Raises HookNotBound."""
        ...

    async def shutdown(self) -> None:
        """End it."""
        ...


class PluginKind(Protocol):
    """Brings plugins of one kind to life."""

    async def start(self, config: PluginConfig) -> StartedPlugin:
        """Start one plugin. Raises `pipeline_plugin_not_loaded`."""
        ...


class TrustedClass:
    """Kind "dotted class path": a class of an installed module, in our own process.

    Operator-installed and trusted not to attack the interpreter; what it sees and changes is
    filtered and merged like everybody's.
    """

    async def start(self, config: PluginConfig) -> StartedPlugin:
        """Import, construct and initialise the class. Raises `pipeline_plugin_not_loaded`."""
        plugin_class = load_class(config.kind)
        try:
            # A deep copy: nothing the plugin does to its configuration reaches the host's.
            plugin = plugin_class(config.model_copy(deep=True))
            await plugin.initialize()
        except Exception as error:
            # Boundary: constructor and initialize are plugin code; that it failed is all we ask.
            raise KagedError(
                f"plugin {config.name!r} refused to start: {type(error).__name__}: {error}",
                code="pipeline_plugin_not_loaded",
                key="config",
            ) from error
        return _InProcess(plugin, config.name)


class _InProcess:
    """A trusted plugin object."""

    def __init__(self, plugin: Plugin, name: str) -> None:
        self.plugin = plugin
        self._name = name

    def bind(self, hook: str) -> HookCall:
        return bind_hook(self.plugin, self._name, hook)

    async def shutdown(self) -> None:
        await self.plugin.shutdown()


def load_class(dotted: str) -> Callable[[PluginConfig], Plugin]:
    """Import a plugin class by its dotted path. Raises `pipeline_plugin_not_loaded`."""
    module_name, _, class_name = dotted.rpartition(".")
    if not module_name:
        raise KagedError(
            f"{dotted!r} is not a dotted class path", code="pipeline_plugin_not_loaded", key="kind"
        )
    if any(
        module_name == blocked or module_name.startswith(f"{blocked}.")
        for blocked in BLOCKED_MODULES
    ):
        raise KagedError(
            f"module {module_name!r} is part of the system, not a plugin",
            code="pipeline_plugin_not_loaded",
            key="kind",
        )
    install_cpex_compat()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # Boundary: importing runs the module; whatever it raises, the plugin is not loaded.
        raise KagedError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}",
            code="pipeline_plugin_not_loaded",
            fix="install the package, or put its folder into plugin_dirs",
            key="kind",
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, Plugin):
        raise KagedError(
            f"{dotted!r} is not a Plugin class",
            code="pipeline_plugin_not_loaded",
            fix="name a class that derives from Plugin",
            key="kind",
        )
    return found


def resolve_kind(kind: str, special: Mapping[str, PluginKind]) -> PluginKind:
    """Return what starts plugins of this kind.

    Raises `pipeline_plugin_not_loaded` for an unknown word.
    """
    if kind in special:
        return special[kind]
    if kind in _ELSEWHERE:
        raise KagedError(
            f"kind {kind} is not available: {_ELSEWHERE[kind]}",
            code="pipeline_plugin_not_loaded",
            fix="use kind: caged with config.class_name",
            key="kind",
        )
    if "." not in kind:
        known = ", ".join(["a dotted class path", *sorted(special)])
        raise KagedError(
            f"unknown kind {kind!r}",
            code="pipeline_plugin_not_loaded",
            fix=f"known are {known}",
            key="kind",
        )
    return TrustedClass()


def add_plugin_dirs(folders: tuple[str, ...], base: Path) -> list[str]:
    """Make modules in `folders` importable; folders outside `base` are refused and given back."""
    refused: list[str] = []
    root = base.resolve()
    for folder in folders:
        path = (root / folder).resolve()
        if not path.is_relative_to(root):
            refused.append(folder)
        elif str(path) not in sys.path:
            sys.path.append(str(path))
    return refused
