"""`refusal`: what a plugin is told about a statement that failed, without a trace of the prefix."""

from __future__ import annotations

import re

from kaged.audit import AuditEvent
from kaged.base import JsonObject
from kaged.plugins.storage.names import PluginSchema
from kaged.store import StoreError
from kaged.store.guest import FaultKind, GuestFault
from kaged.store.plugin_tables import PluginTables
from kaged.wire.errors import InvalidParams, PluginError, RpcError, StorageAccessDenied

_GENERIC = "the statement failed"
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")


def refusal(error: StoreError, schema: PluginSchema, tables: PluginTables) -> RpcError:
    """Turn a failure into the error that the plugin gets."""
    if not isinstance(error, GuestFault):
        return _unavailable()
    message = schema.hide(error.message)
    if tables.mentions_foreign(schema.plugin, message):
        message = _GENERIC
    detail: JsonObject = {} if error.step is None else {"statement": error.step}
    match error.kind:
        case FaultKind.DENIED:
            return StorageAccessDenied("the statement reaches outside this plugin's tables")
        case FaultKind.SYNTAX:
            return InvalidParams(f"the statement is no valid SQL: {message}", detail=detail or None)
        case FaultKind.VALUES:
            return InvalidParams(message, detail=detail or None)
        case FaultKind.CONSTRAINT | FaultKind.FAILED:
            return PluginError(message, detail={"kind": error.kind.value, **detail})
        case FaultKind.UNAVAILABLE:
            return _unavailable()
        case _:
            text = f"{message}; the limit is {error.limit:,}" if error.limit else message
            named: JsonObject = {"limit": error.kind.value, "value": error.limit}
            return PluginError(text, detail={**named, **detail})


def denied_event(
    plugin: str, sql: str, error: StorageAccessDenied, fault: StoreError | None
) -> AuditEvent:
    """Return the audit event for a denied access (PH-AUD-20).

    A table is named only where its name is a bare word: a quoted one may be a value.
    """
    data: JsonObject = {"name": plugin, "sql": sql}
    table = error.detail.get("table") if isinstance(error.detail, dict) else None
    if isinstance(fault, GuestFault):
        is_bare = fault.name is None or _BARE.fullmatch(fault.name)
        data["detail"] = fault.message if is_bare else "outside"
        table = fault.name
    else:
        data["detail"] = "outside" if isinstance(table, str) else error.message
    if isinstance(table, str) and _BARE.fullmatch(table):
        data["table"] = table
    return AuditEvent("plugin.storage_denied", data)


def _unavailable() -> PluginError:
    return PluginError("the storage cannot be used now", detail={"kind": "unavailable"})
