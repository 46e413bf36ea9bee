"""`CAUSES`: for every audit event, whether a guest can cause it, and what then keeps it in bounds.

A guest is whatever the operator does not trust with the log: plugins, scripts, outside MCP servers,
bridges, agents, programs in cages, and callers who were turned away. What a guest can cause in any
number is folded: see `kaged.audit.folding`. A record of something that was done is never folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kaged.base.lazy_dataclass import dataclass


class CauseKind(StrEnum):
    """Who can cause an event, and what follows from that."""

    HOST = "host"  # the operator, a person or the daemon itself
    EFFECT = "effect"  # a guest, by something that was done: each is kept
    CALL = "call"  # a guest's call: kept if the call was let through, else folded (CallTrail)
    GUEST = "guest"  # a guest, as often as it likes: folded


@dataclass(frozen=True, slots=True)
class EventCause:
    """The decision about one event.

    `guest` are the fields that name the guest. `detail` are fields that tell its events apart: the
    first with new values is written even when the guest's share is used up, so that a flood of one
    thing does not hide another. `sums` are numbers that are added up in what is folded. `only`
    limits folding to events with this value in this field. `limit` says what bounds an effect.
    """

    kind: CauseKind
    guest: tuple[str, ...] = ()
    detail: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    only: tuple[str, str] | None = None
    limit: str = ""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _folded(guest: str, detail: str = "", sums: str = "", *, denied: bool = False) -> EventCause:
    only = ("outcome", "denied") if denied else None
    return EventCause(CauseKind.GUEST, _names(guest), _names(detail), _names(sums), only)


def _call(detail: str) -> EventCause:
    return EventCause(CauseKind.CALL, ("caller",), _names(detail), limit=_CALLS)


def _each(names: str, limit: str) -> dict[str, EventCause]:
    return dict.fromkeys(_names(names), EventCause(CauseKind.EFFECT, limit=limit))


_CALLS: Final = "the calls of the guest: quotas of tools, concurrency, the steps of a run"
_STARTS: Final = "starts: growing delays and at most five failures in a row"
_TURNS: Final = "turns of a session: its model, its budget and its limit of steps"
_INBOX: Final = "requests that may wait in the inbox, and the calls that make them"
_ACCOUNTS: Final = "the rate limits of accounts and the flows that one person may have open"
_CLIENTS: Final = "MCP clients, each of which was let in with a credential"

CAUSES: Final[Mapping[str, EventCause]] = MappingProxyType(
    {
        **dict.fromkeys(
            _names(
                "daemon.started daemon.stopped daemon.config_reloaded "
                "project.loaded project.unloaded project.load_failed project.trusted "
                "project.restricted access.token_issued access.signed_in access.signed_out "
                "service_account.created service_account.revoked "
                "invitation.created invitation.accepted invitation.revoked "
                "cage.orphans_ended store.migrated "
                "audit.degraded audit.recovered audit.chain_mismatch audit.exported audit.folded "
                "plugin.enabled plugin.installed plugin.upgraded plugin.uninstalled "
                "plugin.kept_data_removed "
                "plugin.consent_requested plugin.consent_answered plugin.knob_write "
                "plugin.hook.illegal file.reverted kaged.issue.updated kaged.workflow.cancelled "
                "kaged.session.bound kaged.session.created kaged.session.forked "
                "kaged.session.switched kaged.session.deleted kaged.session.exported "
                "kaged.session.imported kaged.interaction.answered "
                "capability_provider_registered capability_account_revoked "
                "capability_consent_decided capability_vault_rotated "
                "capability_account_shared capability_account_unshared "
                "pipeline.loaded mcp.server_restarted skill.agreed "
                "credential.set credential.removed credential.tested"
            ),
            EventCause(CauseKind.HOST),
        ),
        **_each(
            "inbox.asked inbox.answered inbox.withdrawn inbox.expired "
            "access.granted access.refused access.taken_back",
            _INBOX,
        ),
        **_each("cage.started cage.exited", "calls and starts of guests"),
        **_each(
            "plugin.spawned plugin.initialized plugin.initialize_timeout plugin.api_mismatch "
            "plugin.name_mismatch plugin.version_mismatch plugin.capability_overreach "
            "plugin.config_validation_failed plugin.crashed plugin.exited plugin.stopped "
            "plugin.killed plugin.failed plugin.disabled plugin.tool_registered "
            "plugin.tool_name_collision plugin.role_violation "
            "code.lsp.server_spawned code.lsp.server_crashed code.lsp.server_stopped "
            "mcp.server_started mcp.server_stopped mcp.server_crashed mcp.server_failed "
            "mcp.tools_approved",
            _STARTS,
        ),
        **_each(
            "plugin.method_called plugin.method_returned plugin.hook.fired plugin.hook.returned "
            "pipeline.call_changed debug.session_started debug.session_ended "
            "file.written file.edited kaged.issue.created kaged.issue.commented "
            "kaged.issue.transitioned kaged.todo.set kaged.todo.added kaged.todo.started "
            "kaged.todo.completed kaged.todo.dropped kaged.todo.noted kaged.workflow.triggered "
            "kaged.workflow.status_checked kaged.interaction.requested shell.executed lua.exec "
            "shell.backgrounded shell.stopped "
            "lua.session.applied skill.loaded skill.ran session.labelled web.fetched",
            _CALLS,
        ),
        **_each(
            "compaction.triggered compaction.completed compaction.failed compaction.flagged "
            "compactor_dropped_always_keep",
            _TURNS,
        ),
        **_each(
            "capability_invoke_intent capability_account_status capability_shared_use", _ACCOUNTS
        ),
        **_each("mcp.client_came mcp.client_left", _CLIENTS),
        "tool.called": _call("tool_name"),
        "tool.completed": _call("tool_name error_code"),
        "tool.denied": _call("tool_name rule denied_capability"),
        "plugin.method_denied": _folded("operator_id", "name method denied_by"),
        "protected_path.refused": _folded("caller", "who path"),
        "protected_path.taken_back": _folded("who", "path reason"),
        "protected_path.changed": _folded("who", "path"),
        "protected_path.unwatched": _folded("who", "path"),
        "access.denied": _folded("peer_uid peer", "reason"),
        "cage.refused": _folded("what", "code"),
        "cage.net.connected": _folded("what", "host port", "bytes_up bytes_down"),
        "cage.net.denied": _folded("what", "host port rule", "count"),
        "plugin.protocol_violation": _folded("name", "violation_type"),
        "plugin.notification": _folded("name", "notification_type"),
        "plugin.event_published": _folded("name", "topic"),
        "plugin.notification_flood": _folded("name", sums="dropped"),
        "plugin.stdout_noise": _folded("name"),
        "plugin.health_fail": _folded("name", "reason"),
        "plugin.storage_denied": _folded("name", "table"),
        "plugin.hook.timeout": _folded("name", "hook"),
        "plugin.hook.failed": _folded("name", "hook error_code"),
        "debug.breakpoint_hit": _folded("debug_session_id", "path line"),
        "capability_invoke": _folded("user_id skill", "capability.id error.code", denied=True),
        **dict.fromkeys(
            _names(
                "capability_auth_begin capability_auth_complete capability_auth_poll "
                "capability_auth_cancel capability_auth_revoke"
            ),
            _folded("user_id skill", "capability.id error.code", denied=True),
        ),
        "credential.not_granted": _folded("what", "name rule"),
        "credential.used": _folded("what", "name host method path outcome", "count"),
        "credential.refused": _folded("what", "host rule", "count"),
        "credential.client_refused_certificate": _folded("what", "host", "count"),
        "capability_output_rejected": _folded("capability.id", "operation rule path"),
        "capability_provider_unavailable": _folded("provider", "reason"),
        "capability_token_rejected": _folded("", "reason method"),
        "pipeline.changes_discarded": _folded("plugin", "hook"),
        "pipeline.plugin_denied": _folded("plugin", "hook violation_code"),
        "pipeline.plugin_failed": _folded("plugin", "hook failure"),
        "lua.capability.granted": _folded("plugin", "capability"),
        "lua.capability.refused": _folded("plugin", "capability"),
        "lua.request.refused": _folded("plugin", "request capability"),
        "lua.session.asked": _folded("plugin", "move"),
        "lua.session.vetoed": _folded("plugin", "move vetoed_by"),
        "mcp.resource_read": _folded("session_id", "uri"),
        "mcp.prompt_fetched": _folded("session_id", "server prompt"),
        "mcp.tool_changed": _folded("server", "tool what"),
        "mcp.answer_invalid": _folded("server", "tool"),
    }
)
