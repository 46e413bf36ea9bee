"""`plans_of`: how each outside server that `config.toml` names is to be run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kaged.base import KagedError
from kaged.cage import CageKind, CageRequest, HostMount
from kaged.config.secret import Secret
from kaged.config.sections import Sections
from kaged.config.settings import Settings
from kaged.config.toolsections import ChangedTools, McpServerEntry
from kaged.kernel.net import parse_target
from kaged.kernel.policy import CageLimits
from kaged.mcp import host
from kaged.mcp.plan import OutsidePlan

RELAY: Final = "/opt/kaged/mcp_relay.py"


def plans_of(settings: Settings) -> Mapping[str, OutsidePlan]:
    """Work out how each server that the configuration names is to be run."""
    sandbox = settings.daemon.value.sandbox
    limits = sandbox.limits.over(CageLimits())
    runtimes = tuple((name, str(path)) for name, path in sandbox.runtimes.items())
    return {
        name: _plan(name, server, limits, runtimes, settings.local.value.secrets)
        for name, server in settings.daemon.value.mcp.servers.good.items()
    }


def _plan(
    name: str,
    server: McpServerEntry,
    limits: CageLimits,
    runtimes: tuple[tuple[str, str], ...],
    secrets: Sections[Secret[str]],
) -> OutsidePlan:
    policy = replace(server.cage.policy(limits), credentials=server.credentials)
    command, mounts, fault = server.command or (), (), "" if server.enabled else "switched off"
    if server.url is not None:
        # Whatever speaks to the outside does so from a cage: this one reaches that host only.
        command = (os.path.realpath(sys.executable), RELAY, server.url)
        mounts = (HostMount(str(Path(host.__file__).with_name("relay.py")), RELAY),)
        try:
            policy = replace(policy, net=(*policy.net, parse_target(_host_of(server.url))))
        except KagedError as error:
            fault = f"{server.url}: {error.message}"
    kept = {variable: secrets.good.get(entry) for variable, entry in server.secrets.items()}
    if lacking := [server.secrets[one] for one, value in kept.items() if value is None]:
        fault = fault or f"[secrets] of local.toml has no value for {', '.join(lacking)}"
    env = {**server.env, **{one: value for one, value in kept.items() if value is not None}}
    request = CageRequest(
        name=f"mcp:{name}",
        policy=policy,
        command=command,
        kind=CageKind.SERVER,
        env=tuple((variable, value.reveal()) for variable, value in env.items()),
        mounts=mounts,
        runtimes=runtimes,
    )
    return OutsidePlan(
        name=name,
        request=request,
        timeout_s=server.timeout_seconds,
        output_bytes=server.max_output_kb * 1024,
        allow=server.allow_tools,
        deny=server.deny_tools,
        follow=server.changed_tools is ChangedTools.FOLLOW,
        agents=server.agents,
        projects=server.projects,
        enabled=server.enabled and not fault,
        fault=fault,
        reaches_net=bool(policy.net or policy.credentials),
        labels=frozenset(server.labels),
        endpoint=server.url,
    )


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
