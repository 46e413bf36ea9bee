"""How a plugin of some kind comes to life: `PluginKind`, and the trusted class in our process."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from kaged.base.foreign import describe_error, run_apart
from kaged.pipeline.binding import HookCall, HookNotBound, bind_hook
from kaged.pipeline.cpex_compat import install_cpex_compat
from kaged.pipeline.errors import not_loaded
from kaged.pipeline.isolation import exact_text
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
            plugin = await run_apart(_begin(plugin_class, config), config.name)
        except asyncio.CancelledError:
            raise  # the caller's own: what the plugin cancels is not its caller
        except BaseException as error:
            # Boundary: constructor and initialize are plugin code; that it failed is all we ask.
            message = f"plugin {config.name!r} refused to start: {describe_error(error)}"
            raise not_loaded(message, "config") from error
        return _InProcess(plugin, config.name)


def what_decides(started: StartedPlugin) -> str:
    """Return what a plugin's answer depends on beside what it is given; empty if on nothing.

    A class declares for itself: a subclass of a pure one may do anything.
    """
    if not isinstance(started, _InProcess):
        return "a process of its own"
    plugin_class = type(started.plugin)
    declared = vars(plugin_class)
    if declared.get("pure") is True:
        return ""
    said = exact_text(declared.get("depends_on"))
    return said or "what it keeps to itself"


def declares_no_edits(started: StartedPlugin) -> bool:
    """Return whether a plugin's class declares for itself that it changes nothing."""
    return isinstance(started, _InProcess) and vars(type(started.plugin)).get("edits") is False


async def _begin(plugin_class: Callable[[PluginConfig], Plugin], config: PluginConfig) -> Plugin:
    # A deep copy: nothing the plugin does to its configuration reaches the host's.
    plugin = plugin_class(config.model_copy(deep=True))
    await plugin.initialize()
    return plugin


class _InProcess:
    """A trusted plugin object."""

    def __init__(self, plugin: Plugin, name: str) -> None:
        self.plugin = plugin
        self._name = name

    def bind(self, hook: str) -> HookCall:
        try:
            return bind_hook(self.plugin, self._name, hook)
        except HookNotBound:
            raise
        except BaseException as error:
            # Boundary: a plugin's attribute is plugin code.
            message = f"hook {hook!r} of plugin {self._name!r} cannot be read"
            raise not_loaded(f"{message}: {describe_error(error)}", "hooks") from error

    async def shutdown(self) -> None:
        await run_apart(self.plugin.shutdown(), self._name)


def load_class(dotted: str) -> Callable[[PluginConfig], Plugin]:
    """Import a plugin class by its dotted path. Raises `pipeline_plugin_not_loaded`."""
    module_name, _, class_name = dotted.rpartition(".")
    if not module_name:
        raise not_loaded(f"{dotted!r} is not a dotted class path", "kind")
    if any(
        module_name == blocked or module_name.startswith(f"{blocked}.")
        for blocked in BLOCKED_MODULES
    ):
        raise not_loaded(f"module {module_name!r} is part of the system, not a plugin", "kind")
    install_cpex_compat()
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, class_name, None)
    except BaseException as error:
        # Boundary: importing runs the module; whatever it raises, the plugin is not loaded.
        raise not_loaded(
            f"module {module_name!r} cannot be imported: {describe_error(error)}",
            "kind",
            "install the package, or put its folder into plugin_dirs",
        ) from error
    if not isinstance(found, type) or not issubclass(found, Plugin):
        fix = "name a class that derives from Plugin"
        raise not_loaded(f"{dotted!r} is not a Plugin class", "kind", fix)
    return found


def resolve_kind(kind: str, special: Mapping[str, PluginKind]) -> PluginKind:
    """Return what starts plugins of this kind.

    Raises `pipeline_plugin_not_loaded` for an unknown word.
    """
    if kind in special:
        return special[kind]
    if kind in _ELSEWHERE:
        fix = "use kind: caged with config.class_name"
        raise not_loaded(f"kind {kind} is not available: {_ELSEWHERE[kind]}", "kind", fix)
    if "." not in kind:
        known = ", ".join(["a dotted class path", *sorted(special)])
        raise not_loaded(f"unknown kind {kind!r}", "kind", f"known are {known}")
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
