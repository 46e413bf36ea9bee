"""`kaged.workflow.list`, `.trigger` and `.status`: the root agent starts declared jobs."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.config.workflows import Invoker
from kaged.toolbox.project.texts import definition
from kaged.toolbox.project.workflows import RUN_ID_LIMIT_CHARS, WorkflowService
from kaged.tools import Tool, ToolDefinition, ToolInvocation
from kaged.tools.fields import closed, text

INVOKER_ID: Final = "agent:primary"

LIST_PARAMETERS: Final[JsonObject] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "invokable_by": {
            "enum": [one.value for one in Invoker],
            "description": "Only workflows that these may start; without it all of them.",
        }
    },
}
TRIGGER_PARAMETERS: Final = closed(
    {
        "name": text("The workflow, as kaged.workflow.list names it.", minLength=1, maxLength=200),
        "inputs": {
            "type": "object",
            "description": "Its inputs by name; {} when it takes none. Defaults are filled in.",
        },
    },
    ["name", "inputs"],
)
STATUS_PARAMETERS: Final = closed(
    {
        "run_id": text(
            "As kaged.workflow.trigger gave it.", minLength=1, maxLength=RUN_ID_LIMIT_CHARS
        )
    },
    ["run_id"],
)


def workflow_tools(service: WorkflowService) -> tuple[Tool, ...]:
    """Make the three tools."""

    async def list_workflows(call: ToolInvocation) -> JsonValue:
        wanted = call.args.get("invokable_by")
        invoker = None if wanted is None else Invoker(str(wanted))
        return service.list(call.context.project_id, invoker, call.context.identity)

    async def trigger(call: ToolInvocation) -> JsonValue:
        inputs = call.args["inputs"]
        assert isinstance(inputs, dict)  # by the schema
        name = str(call.args["name"])
        who = call.context.identity
        invoker_id = who.person_id if who is not None and who.is_person else None
        done = await service.trigger(
            call.context.project_id, name, inputs, invoker_id or INVOKER_ID, who=who
        )
        return done.tell(call)

    async def status(call: ToolInvocation) -> JsonValue:
        run_id = str(call.args["run_id"])
        done = await service.status(call.context.project_id, run_id, call.context.identity)
        return done.tell(call)

    return (
        Tool(
            definition=_definition(
                "list",
                "List the workflows of this project: jobs with a name, what each does and the "
                "inputs it takes. Look here before you start one.",
                LIST_PARAMETERS,
                "{workflows: [{name, description, inputs, invokable_by, timeout_seconds}], count}",
            ),
            handler=list_workflows,
        ),
        Tool(
            definition=_definition(
                "trigger",
                "Start a workflow. It goes on by itself: the answer has a run_id, with which "
                "kaged.workflow.status returns its status. Workflows that need a file can only "
                "be started by the operator.",
                TRIGGER_PARAMETERS,
                "{run_id, workflow_name, status, created_at}",
            ),
            handler=trigger,
            changes=True,
        ),
        Tool(
            definition=_definition(
                "status",
                "Return the status of a workflow run: running, succeeded, failed (with error) or "
                "cancelled.",
                STATUS_PARAMETERS,
                "{run_id, workflow_name, status, inputs, created_at, completed_at, duration_ms}",
            ),
            handler=status,
        ),
    )


def _definition(
    action: str, description: str, parameters: JsonObject, gives: str
) -> ToolDefinition:
    returns: JsonObject = {"type": "object", "description": gives}
    return definition(f"kaged.workflow.{action}", description, parameters, returns)
