"""Method names on the plugin wire: the system methods, reserved namespaces and the grammar."""

from __future__ import annotations

import re
from enum import StrEnum

METHOD_NAME_LIMIT_CHARS = 256


class SystemMethod(StrEnum):
    """What the host sends to every plugin (PH-METH-02)."""

    INITIALIZE = "initialize"
    INITIALIZED = "initialized"
    SHUTDOWN = "shutdown"
    PING = "ping"
    CONFIG_UPDATE = "config.update"
    PROJECTS_ACTIVATED = "projects.activated"
    PROJECTS_DEACTIVATED = "projects.deactivated"


class StorageMethod(StrEnum):
    """What a plugin may ask of the host's storage (PH-METH-09 to PH-METH-11)."""

    EXEC = "kaged.storage.exec"
    QUERY = "kaged.storage.query"
    SCHEMA = "kaged.storage.schema"


class EventsMethod(StrEnum):
    """What a plugin may ask of the host about events between plugins."""

    PUBLISH = "kaged.events.publish"
    SUBSCRIBE = "kaged.events.subscribe"


HOOK_NAMESPACE = "kaged.hook."
RATE_LIMITED = "system.rate_limited"  # PH-NOTIF-07

_RESERVED_NAMESPACES = ("kaged.", "system.")  # PH-METH-16
_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*){1,3}")


def is_method_name(name: str) -> bool:
    """Return whether a name has the form of a method or notification (PH-METH-15).

    Two to four segments between dots, each lower-case ASCII letters, digits and underscores with
    a letter first. Reserved namespaces have this form too; see `is_plugin_method_name`.
    """
    return len(name) <= METHOD_NAME_LIMIT_CHARS and _NAME.fullmatch(name) is not None


def is_reserved_name(name: str) -> bool:
    """Return whether a name lies in a namespace that plugins may not use (PH-METH-16)."""
    return name.startswith(_RESERVED_NAMESPACES)


def is_plugin_method_name(name: str) -> bool:
    """Return whether a plugin may declare this method or send this notification (PH-NOTIF-01)."""
    return is_method_name(name) and not is_reserved_name(name)
