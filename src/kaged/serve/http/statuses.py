"""The one table from error code to HTTP status, by area. A test fails when a code has no row.

Most of these never reach an HTTP caller as they are; they have a row so that none that ever does
becomes a 500 by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

UNKNOWN_STATUS: Final = 500

_EDGE = {
    "access_denied": 403,
    "bind_failed": 500,
    "daemon_stopping": 503,
    "headers_too_large": 431,
    "host_not_allowed": 421,
    "insecure_bind_refused": 500,
    "internal": 500,
    "internal_error": 500,
    "invalid_cursor": 400,
    "invalid_request": 422,
    "launch_token_invalid": 403,
    "method_not_allowed": 405,
    "not_found": 404,
    "origin_not_allowed": 403,
    "payload_too_large": 413,
    "port_in_use": 500,
    "request_timeout": 504,
    "slow_client": 503,
    "tcp_disabled": 409,
    "token_file_unusable": 500,
    "too_many_connections": 503,
    "too_many_subscribers": 503,
    "unauthenticated": 401,
    "unexpected_message": 400,
}
_DAEMON = {
    "daemon_opening": 503,
    "daemon_running": 409,
    "daemon_start_failed": 503,
    "daemon_stuck": 503,
    "daemon_unreachable": 503,
    "agent_not_found": 404,
    "agent_uncaged": 409,
    "cage_ambiguous": 409,
    "cage_not_found": 404,
    "home_unusable": 500,
    "location_unsafe": 500,
    "locations_unknown": 500,
    "project_ambiguous": 409,
    "project_init_refused": 409,
    "project_not_found": 404,
    "project_path_invalid": 422,
    "project_root_invalid": 422,
    "schema_not_found": 404,
    "too_many_projects": 409,
}
_MEMORY = {
    "audit_chain_moved": 503,
    "audit_event_invalid": 500,
    "audit_key_invalid": 500,
    "audit_key_missing": 500,
    "audit_unavailable": 503,
    "store_conflict": 409,
    "store_corrupt": 500,
    "store_error": 500,
    "store_foreign": 500,
    "store_migration_failed": 500,
    "store_newer_schema": 500,
    "store_timeout": 504,
    "store_unavailable": 503,
    "store_url_invalid": 500,
}
_CONFIG = {
    "config_busy": 409,
    "config_changed": 409,
    "config_edit_refused": 409,
    "config_invalid": 422,
    "config_write_failed": 503,
    "host_value_invalid": 422,
    "plugin_source_invalid": 422,
    "reserved_plugin_name": 422,
    "storage_url_invalid": 422,
    "version_invalid": 422,
}
_KERNEL = {
    "capability_denied": 403,
    "capability_invalid_input": 422,
    "extension_capability_invalid": 422,
    "lua_power_invalid": 422,
    "manifest_capability_invalid": 422,
    "net_target_invalid": 422,
    "path_invalid": 422,
    "seccomp_insufficient": 403,
    "tool_requirement_invalid": 422,
}
# PH-AMB-50: a plugin that is down or too slow is a 502, an unknown method a 404, bad
# parameters a 400.
_WIRE = {
    "capability_invalid_output": 502,
    "context_invalid": 500,
    "invalid_context_token": 401,
    "invalid_params": 400,
    "method_not_found": 404,
    "not_applicable": 409,
    "not_initialized": 502,
    "peer_gone": 502,
    "peer_stalled": 502,
    "peer_timeout": 502,
    "protocol.bad_header": 502,
    "protocol.closed": 502,
    "protocol.framing": 502,
    "protocol.not_json": 502,
    "protocol.oversize_message": 502,
    "reserved_error_number": 502,
    "resource_busy": 503,
    "rpc_error": 502,
    "rpc_parse_error": 502,
    "storage_access_denied": 403,
    "token_key_invalid": 500,
}
_CAGE = {
    "cage_error": 500,
    "cage_grant_refused": 403,
    "cage_policy_conflict": 422,
    "cage_program_missing": 422,
    "cage_start_failed": 503,
    "cage_unavailable": 503,
    "cage_unsafe_argument": 422,
    "cage_wrong_thread": 500,
    "net_namespace_unavailable": 503,
    "net_plan_too_large": 422,
    "spawn_failed": 503,
}
_PLUGINS = {
    "plugins_absent": 503,
    "knob_not_found": 404,
    "knob_value_refused": 422,
    "plugin_already_installed": 409,
    "plugin_consent_missing": 403,
    "plugin_consent_unknown": 404,
    "plugin_in_use": 409,
    "plugin_scaffold_refused": 409,
    "plugin_source_not_allowed": 403,
    "plugin_source_unavailable": 502,
    "plugin_store_failed": 500,
    "plugin_tree_refused": 422,
    "plugin_error": 502,
    "plugin_not_found": 404,
    "plugin_start_failed": 502,
    "plugin_timed_out": 502,
    "tool_name_invalid": 422,
    "plugin_state_refused": 409,
    "plugin_unavailable": 502,
    "tool_name_collision": 409,
}
_PIPELINE = {
    "mcp_call_failed": 502,
    "mcp_server_invalid": 422,
    "mcp_server_unavailable": 502,
    "pipeline_file_not_found": 404,
    "pipeline_trace_input_invalid": 422,
    "pipeline_plugin_not_loaded": 503,
    "pipeline_standin_unavailable": 500,
    "plugin_answer_invalid": 502,
    "plugin_call_not_sendable": 500,
    "plugin_raised": 502,
    "plugin_worker_gone": 502,
    "pipeline_foreign_extensions": 500,
    "pipeline_foreign_payload": 500,
    "pipeline_foreign_result": 500,
    "pipeline_hook_not_bound": 500,
    "pipeline_not_ready": 503,
    "pipeline_payload_too_large": 413,
    "pipeline_recursion": 500,
    "pipeline_value_not_isolable": 500,
    "plugin_cancelled": 502,
    "plugin_timeout": 502,
    "plugin_violation": 403,
    "tier_violation": 403,
}
_DESK = {
    "pipeline_refused": 403,
    "principal_scope_violation": 403,
    "quota_exceeded": 429,
    "tool_context_invalid": 500,
    "tool_definition_invalid": 500,
    "tool_error": 500,
    "tool_not_found": 404,
    "tools_absent": 503,
}
_WORK = {
    "content_addressing_hint": 422,
    "file_input_not_supported": 422,
    "interaction_answer_invalid": 422,
    "interaction_closed": 409,
    "interaction_not_found": 404,
    "interaction_pending": 409,
    "interaction_withdrawn": 409,
    "invalid_assignment": 422,
    "invalid_transition": 409,
    "issue_not_found": 404,
    "no_bound_issue": 409,
    "project_work_absent": 503,
    "run_not_found": 404,
    "session_not_found": 404,
    "todo_not_found": 404,
    "upload_refused": 409,
    "workflow_not_found": 404,
    "workflow_runner_missing": 409,
}
_FILES = {
    "file_busy": 409,
    "file_changed_since_read": 409,
    "file_exists": 409,
    "file_not_found": 404,
    "file_not_read": 409,
    "file_restore_failed": 500,
    "file_too_large": 413,
    "file_unreadable": 403,
    "file_write_failed": 503,
    "multiple_matches": 409,
    "no_change": 422,
    "old_string_not_found": 409,
    "undo_absent": 503,
    "undo_conflict": 409,
    "undo_not_found": 404,
}
_SEARCH = {
    "ast_time_up": 504,
    "engine_unavailable": 503,
    "invalid_pattern": 422,
    "parse_error": 422,
}
_CODE = {
    "bridges_absent": 503,
    "lsp_request_failed": 502,
    "lsp_server_not_found": 503,
    "lsp_server_unavailable": 502,
    "lsp_timeout": 504,
    "rename_not_possible": 409,
    "rename_scope_exceeds_cage": 403,
    "shell_spawn_failed": 503,
}
_DEBUG = {
    "dap_adapter_not_found": 503,
    "dap_not_stopped": 409,
    "dap_request_failed": 502,
    "dap_requires_relaxed_seccomp": 403,
    "dap_session_active": 409,
    "dap_session_ended": 409,
    "dap_unsupported": 409,
}

HTTP_STATUS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **_EDGE,
        **_DAEMON,
        **_MEMORY,
        **_CONFIG,
        **_KERNEL,
        **_WIRE,
        **_CAGE,
        **_PLUGINS,
        **_PIPELINE,
        **_DESK,
        **_WORK,
        **_FILES,
        **_SEARCH,
        **_CODE,
        **_DEBUG,
    }
)


def status_of(code: str) -> int:
    """Give the HTTP status of an error code; a code nobody entered in the table is a 500."""
    return HTTP_STATUS.get(code, UNKNOWN_STATUS)


__all__ = ["HTTP_STATUS", "UNKNOWN_STATUS", "status_of"]
