"""What a status page shows of a plugin."""

from __future__ import annotations

from collections.abc import Iterable

from kaged.base import Clock, JsonObject, JsonValue
from kaged.kernel.describe import describe_policy
from kaged.plugins.plugin import HostedPlugin


def plugin_status(plugin: HostedPlugin, clock: Clock) -> JsonObject:
    """Describe one plugin: state, process, capabilities, counters."""
    conversation = plugin.conversation
    greeting = conversation.greeting if conversation is not None else None
    pid = conversation.pid if conversation is not None else None
    process = conversation.peer.process if conversation is not None and pid is not None else None
    since_s = plugin.running_since_s
    manifest = plugin.installed.manifest
    return {
        "name": plugin.name,
        "version": plugin.installed.version,
        "description": manifest.description,
        "homepage": manifest.homepage,
        "state": plugin.state.value,
        "note": plugin.note,
        "local": plugin.installed.local,
        "pid": pid,
        "uptime_s": None if since_s is None else round(clock.monotonic_s() - since_s, 1),
        "cage_id": process.cage_id if process is not None else None,
        "limits_backend": process.cage.backend if process and process.cage else None,
        "failures": plugin.failures,
        "capabilities": _texts(manifest.capabilities.texts),
        "operator_grants": _texts(plugin.installed.grants.texts),
        "cage": _cage(plugin) if pid is not None else None,
        "methods": _texts(sorted(greeting.methods)) if greeting is not None else [],
        "notifications": _texts(greeting.notifications) if greeting is not None else [],
        "tools": _texts(f"{plugin.name}.{tool.name}" for tool in manifest.tools),
        "hooks": _texts(hook.value for hook in manifest.hooks),
        "projects": _texts(sorted(plugin.projects)),
        "metrics": plugin.metrics.as_json(),
    }


def _cage(plugin: HostedPlugin) -> list[JsonValue]:
    """Describe the cage that its process runs in, as it was made at its start."""
    policy = plugin.conversation.policy if plugin.conversation is not None else None
    return [] if policy is None else [one.as_json() for one in describe_policy(policy, plugin=True)]


def _texts(values: Iterable[str]) -> list[JsonValue]:
    return list(values)
