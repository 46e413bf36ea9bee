"""Which language server or debug adapter is used: the project's, the operator's or the built-in.

Commands of a project file run on the host, so they count only once the operator has trusted the
project (AT-DSL-21).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import Sourced
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.problems import DEFAULT, Origin, format_key_path
from kaged.config.project import Project
from kaged.config.reading import Loaded

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """A debug adapter with its settings, whichever file they came from."""

    type: str
    command: Argv | None
    adapter: Argv | None
    requires_ptrace: bool | None


def choose_lsp_servers(
    project: Loaded[Project],
    daemon: Loaded[DaemonConfig],
    builtin: Mapping[str, Argv],
    *,
    trusted: bool,
) -> Mapping[str, Sourced[Argv]]:
    """Return the command for each language: project over operator over built-in."""
    chosen = {lang: Sourced(command, _BUILTIN) for lang, command in builtin.items()}
    for lang, server in daemon.value.lsp.servers.items():
        origin = _origin(daemon, ("lsp", "servers", lang))
        chosen[lang] = Sourced(server.command, origin)
    if trusted:
        for index, server in enumerate(project.value.dsl.lsp.servers):
            origin = _origin(project, ("lsp", "servers", index))
            chosen[server.lang] = Sourced(server.command, origin)
    return MappingProxyType(chosen)


def choose_parallel_requests(
    project: Loaded[Project], daemon: Loaded[DaemonConfig], *, trusted: bool
) -> Mapping[str, int]:
    """Return how many questions each language's server takes at once, where a file says so.

    The file that names the command is the one that counts.
    """
    chosen = {lang: one.parallel_requests for lang, one in daemon.value.lsp.servers.items()}
    if trusted:
        own = project.value.dsl.lsp.servers
        chosen |= {server.lang: server.parallel_requests for server in own}
    return chosen


def choose_dap_adapters(
    project: Loaded[Project],
    daemon: Loaded[DaemonConfig],
    builtin: Mapping[str, AdapterChoice],
    *,
    trusted: bool,
) -> Mapping[str, Sourced[AdapterChoice]]:
    """Return the adapter for each runtime: project over operator over built-in."""
    chosen = {runtime: Sourced(adapter, _BUILTIN) for runtime, adapter in builtin.items()}
    for runtime, item in daemon.value.dap.adapters.items():
        choice = AdapterChoice(item.type, item.command, item.adapter, item.requires_ptrace)
        chosen[runtime] = Sourced(choice, _origin(daemon, ("dap", "adapters", runtime)))
    if trusted:
        for index, own in enumerate(project.value.dsl.dap.adapters):
            choice = AdapterChoice(own.type, own.command, own.adapter, own.requires_ptrace)
            chosen[own.runtime] = Sourced(choice, _origin(project, ("dap", "adapters", index)))
    return MappingProxyType(chosen)


_BUILTIN = Origin(None, None, "built in")


def _origin(loaded: Loaded[Project] | Loaded[DaemonConfig], path: tuple[str | int, ...]) -> Origin:
    return loaded.provenance.get(format_key_path(path), DEFAULT)
