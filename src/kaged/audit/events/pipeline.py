"""Events of the extension pipeline."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

EXTENSIONS_PIPELINE = Chapter(
    "Extension pipeline",
    (
        event(
            "pipeline.loaded",
            "The pipeline's file was read; with errors in it the plugins before stay in force.",
            "file:str in_force:bool plugins:list problems:list",
        ),
        event(
            "pipeline.changes_discarded",
            "Changes that a plugin may not make were dropped, counted per slot.",
            "plugin:str hook:str slots:obj",
        ),
        event(
            "pipeline.call_changed",
            "A plugin changed a tool call, which was then decided again.",
            "plugin:str hook:str tool_name:str changed:list",
            "outcome:str new_tool_name:str",
        ),
        event(
            "pipeline.plugin_denied",
            "A plugin stopped a call.",
            "plugin:str hook:str violation_code:str",
            "detail:cut mode:str",
        ),
        event(
            "pipeline.plugin_failed",
            "A plugin raised or took too long.",
            "plugin:str hook:str failure:str on_error:str",
            "cause:str detail:cut timeout_sec:num",
        ),
    ),
)
