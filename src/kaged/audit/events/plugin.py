"""Events of the plugin host and of compaction."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

PLUGIN_HOST = Chapter(
    "Plugin host",
    (
        event(
            "plugin.spawned",
            "A plugin process started.",
            "name:str version:str pid:int cage_id:str",
            "operator_grants:list",
        ),
        event(
            "plugin.initialized",
            "The handshake completed and the plugin is running.",
            "name:str methods_count:int capabilities_count:int",
        ),
        event(
            "plugin.initialize_timeout",
            "The plugin did not answer `initialize` in time and was killed.",
            "name:str reason:str",
            "timeout_sec:num",
        ),
        event(
            "plugin.api_mismatch",
            "The plugin uses another version of the plugin API; its process was killed.",
            "name:str reason:str host_api_version:int plugin_api_version:any",
        ),
        event(
            "plugin.name_mismatch",
            "The plugin answered the handshake with a name that is not its manifest's.",
            "name:str reason:str",
            "answered:any",
        ),
        event(
            "plugin.version_mismatch",
            "The plugin answered the handshake with a version that is not its manifest's.",
            "name:str reason:str",
            "version:str? answered:any",
        ),
        event(
            "plugin.capability_overreach",
            "The plugin claimed capabilities beyond its manifest and was killed.",
            "name:str claimed:list allowed:list",
            "reason:str",
        ),
        event(
            "plugin.protocol_violation",
            "The plugin broke the wire protocol.",
            "name:str violation_type:str detail:str",
            "reason:str",
        ),
        event(
            "plugin.config_validation_failed",
            "The project half or the system half of a plugin's config failed its schema.",
            "name:str side:str errors:list",
        ),
        event(
            "plugin.method_called",
            "The host called a method that the plugin declares, or one of its tools.",
            "name:str method:str request_id:str operator_id:str? project_id:str?",
        ),
        event(
            "plugin.method_denied",
            "A policy refused a call of a method, before it was made or its result.",
            "name:str method:str hook:str denied_by:str? operator_id:str? "
            "project_id:str? reason:str",
        ),
        event(
            "plugin.method_returned",
            "The call ended: with a result, an error, a timeout or the plugin's death.",
            "name:str method:str request_id:str duration_ms:num success:bool",
            "error_code:any",
        ),
        event(
            "plugin.notification",
            "The plugin sent a notification that was accepted.",
            "name:str notification_type:str",
            "declared:bool",
        ),
        event(
            "plugin.event_published",
            "The plugin sent an event to other plugins; `to` are those that were listening.",
            "name:str topic:str to:list",
        ),
        event(
            "plugin.notification_flood",
            "The plugin sent more notifications than the limit; the excess was dropped.",
            "name:str rate:num",
            "dropped:int",
        ),
        event(
            "plugin.stdout_noise",
            "The plugin wrote a line that is not JSON to its standard output.",
            "name:str line:cut",
        ),
        event(
            "plugin.health_fail",
            "A health check failed.",
            "name:str consecutive_failures:int",
            "reason:str",
        ),
        event(
            "plugin.crashed",
            "The plugin process ended unexpectedly.",
            "name:str exit_code:int? signal:any last_stderr:tail",
            "reason:str pid:int?",
        ),
        event(
            "plugin.exited",
            "The plugin process ended with code 0.",
            "name:str exit_code:int?",
            "last_stderr:tail reason:str pid:int?",
        ),
        event(
            "plugin.stopped",
            "The plugin ended when it was asked to, by `shutdown` or SIGTERM.",
            "name:str",
            "signal:any exit_code:int? reason:str",
        ),
        event(
            "plugin.killed",
            "The plugin did not end in time and was killed with SIGKILL.",
            "name:str",
            "signal:any reason:str",
        ),
        event(
            "plugin.failed",
            "The plugin reached the limit of consecutive failures, or could not be started.",
            "name:str total_failures:int",
            "step:str reason:str exit_code:int? signal:any last_stderr:tail",
        ),
        event("plugin.enabled", "The operator enabled the plugin.", "name:str", gates=True),
        event(
            "plugin.disabled",
            "The plugin was disabled by the operator, by failure or by an invalid manifest.",
            "name:str reason:str",
            "detail:str",
        ),
        event(
            "plugin.installed",
            "A plugin was installed.",
            "name:str version:str source:str local:bool",
            "capabilities:list given_back:list",
            gates=True,
        ),
        event(
            "plugin.upgraded",
            "A plugin was replaced by another version.",
            "name:str old_version:str new_version:str capability_diff:any",
            "source:str",
            gates=True,
        ),
        event(
            "plugin.uninstalled",
            "A plugin was removed, with its data, its secrets and the tables it had in the store, "
            "except for what `kept` names.",
            "name:str version:str",
            "tables:list kept:list",
            gates=True,
        ),
        event(
            "plugin.kept_data_removed",
            "What was kept of an uninstalled plugin was removed for good.",
            "name:str version:str digest:str kept:list",
            gates=True,
        ),
        event(
            "plugin.consent_requested",
            "A project asks for a plugin that needs the operator's yes.",
            "name:str step:str source:str",
            "version:str? capabilities:list consent_id:str",
        ),
        event(
            "plugin.consent_answered",
            "The operator answered a consent request.",
            "name:str step:str allowed:bool",
            "source:str consent_id:str capabilities:list",
            gates=True,
        ),
        event(
            "plugin.storage_denied",
            "The plugin tried to reach data outside its own tables.",
            "name:str sql:sql",
            "table:str? detail:str",
        ),
        event(
            "plugin.hook.fired",
            "A lifecycle hook was sent to a plugin.",
            "name:str hook:str agent_path:str session_id:str? request_id:str",
        ),
        event(
            "plugin.hook.returned",
            "A lifecycle hook returned.",
            "name:str hook:str duration_ms:num has_result:bool",
        ),
        event(
            "plugin.hook.timeout",
            "A lifecycle hook took too long and counts as no answer.",
            "name:str hook:str agent_path:str timeout_sec:num",
        ),
        event(
            "plugin.hook.failed",
            "A lifecycle hook failed and counts as no answer.",
            "name:str hook:str agent_path:str error_code:any error_message:cut",
        ),
        event(
            "plugin.hook.illegal",
            "A subagent declared a hook that only the primary agent may have; it is ignored.",
            "name:str hook:str agent_path:str",
        ),
        event(
            "plugin.tool_registered",
            "A plugin's tool entered an agent's tool set.",
            "name:str tool:str agent_path:str",
        ),
        event(
            "plugin.tool_name_collision",
            "Two plugins claim one tool name; the first keeps it.",
            "first:str second:str tool:str",
        ),
        event(
            "plugin.role_violation",
            "An agent has a second compactor; it was refused.",
            "first:str second:str agent_path:str",
        ),
        event(
            "plugin.knob_write",
            "The operator changed a knob and the plugin was notified.",
            "name:str knob:str agent_path:str request_id:str",
            gates=True,
        ),
        event(
            "compaction.triggered",
            "A session's window is full and compaction begins.",
            "compaction_id:str strategy:str",
            "messages:int tokens:int threshold:num",
        ),
        event(
            "compaction.completed",
            "Compaction ended and the session goes on.",
            "compaction_id:str strategy:str",
            "messages_before:int messages_after:int summary:str? fallback:bool duration_ms:num "
            "plugin:str?",
        ),
        event(
            "compaction.failed",
            "The strategy failed; the session falls back to dropping old messages.",
            "compaction_id:str strategy:str",
            "plugin:str? failure:str detail:cut",
        ),
        event(
            "compaction.flagged",
            "Compaction ended with something that a person should look at.",
            "compaction_id:str flag:str",
            "plugin:str? detail:cut",
        ),
        event(
            "compactor_dropped_always_keep",
            "A compactor's answer left out a message that must be kept; its answer was not used.",
            "name:str missing:list",
            "compaction_id:str",
        ),
    ),
)
