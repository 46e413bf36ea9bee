"""How a plugin of some kind comes to life: `PluginKind`, and the trusted class in our process."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from kaged.base import KagedError
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


_class_dict = type.__dict__["__dict__"].__get__


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
        """Import, construct, initialize and bind the class. Raises `pipeline_plugin_not_loaded`."""
        refused: list[KagedError] = []
        try:
            return await run_apart(_begin(config, refused), config.name)
        except asyncio.CancelledError:
            raise  # the caller's own: what the plugin cancels is not its caller
        except BaseException as error:
            if any(error is one for one in refused):
                raise
            # Boundary: module, constructor and initialize are plugin code; that it failed is all
            # we ask.
            message = f"plugin {config.name!r} refused to start: {describe_error(error)}"
            raise not_loaded(message, "config") from error


def what_decides(started: StartedPlugin) -> str:
    """Return what a plugin's answer depends on beside what it is given; empty if on nothing.

    A class declares for itself: a subclass of a pure one may do anything.
    """
    if not isinstance(started, _InProcess):
        return "a process of its own"
    plugin_class = type(started.plugin)
    declared = _declared(plugin_class)
    if declared.get("pure") is True:
        return ""
    said = exact_text(declared.get("depends_on"))
    return said or "what it keeps to itself"


def declares_no_edits(started: StartedPlugin) -> bool:
    """Return whether a plugin's class declares for itself that it changes nothing."""
    return isinstance(started, _InProcess) and _declared(type(started.plugin)).get("edits") is False


def _declared(plugin_class: type) -> Mapping[str, object]:
    """Return what a class declares for itself, below what its metaclass says."""
    return _class_dict(plugin_class)


async def _begin(config: PluginConfig, refused: list[KagedError]) -> _InProcess:
    """Run what is plugin code at a start; errors of the host's own are added to `refused`."""
    try:
        plugin_class = load_class(config.kind)
    except KagedError as error:
        if type(error) is KagedError:  # the host's own, and no class of the plugin's
            refused.append(error)
        raise
    # A deep copy: nothing the plugin does to its configuration reaches the host's.
    plugin = plugin_class(config.model_copy(deep=True))
    await plugin.initialize()
    return _InProcess(
        plugin, {hook: _found_hook(plugin, config.name, hook) for hook in config.hooks}
    )


def _found_hook(plugin: Plugin, name: str, hook: str) -> HookCall | KagedError:
    """Return how a hook is called, or why it cannot be: the plugin is started and has to end."""
    try:
        return bind_hook(plugin, name, hook)
    except HookNotBound as error:
        return error
    except BaseException as error:  # noqa: BLE001 - boundary: a plugin's attribute is plugin code
        return not_loaded(
            f"hook {hook!r} of plugin {name!r} cannot be read: {describe_error(error)}", "hooks"
        )


class _InProcess:
    """A trusted plugin object, with its hooks as they were when it started."""

    def __init__(self, plugin: Plugin, hooks: Mapping[str, HookCall | KagedError]) -> None:
        self.plugin = plugin
        self._hooks = hooks

    def bind(self, hook: str) -> HookCall:
        found = self._hooks[hook]
        if isinstance(found, KagedError):
            raise found
        return found

    async def shutdown(self) -> None:
        await run_apart(self._end(), "shutdown")

    async def _end(self) -> None:
        await self.plugin.shutdown()


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
