"""What a workflow is started with: one check for agents, HTTP and commands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from kaged.base import JsonObject, JsonValue
from kaged.config.workflows import InputType, Workflow, WorkflowInput
from kaged.toolbox.project.errors import WorkError
from kaged.toolbox.project.texts import require_unicode
from kaged.tools import InvalidToolParams

INPUTS_LIMIT_CHARS = 256 * 1024
NAME_SHOWN_CHARS = 80


def describe_inputs(workflow: Workflow) -> JsonObject:
    """Write the inputs of a workflow as agents read them."""
    return {name: _described(one) for name, one in workflow.inputs.items()}


def refuse_files(name: str, workflow: Workflow, inputs: Mapping[str, JsonValue]) -> None:
    """Refuse a workflow that needs a file, and a file for one that merely takes it.

    Raises `file_input_not_supported` when a tool call brings no files.
    """
    files = [key for key, one in workflow.inputs.items() if one.type is InputType.FILE]
    wanted = [key for key in files if workflow.inputs[key].required or key in inputs]
    if wanted:
        raise WorkError(
            f"The workflow {name!r} takes a file ({', '.join(wanted)}), which this tool cannot "
            "bring.",
            code="file_input_not_supported",
            fix="ask the operator to start it over HTTP: "
            f"POST /api/v1/projects/{{project_id}}/workflows/{name}/runs",
            workflow=name,
            inputs=list[JsonValue](wanted),
        )


def checked_inputs(
    workflow: Workflow, inputs: Mapping[str, JsonValue], files: frozenset[str] = frozenset()
) -> JsonObject:
    """Return a run's inputs with defaults filled in. `files` names the uploads given along.

    Raises InvalidToolParams.
    """
    problems = _strangers(workflow, inputs, files)
    result: JsonObject = {}
    for name, declared in workflow.inputs.items():
        is_file = declared.type is InputType.FILE
        if name in inputs and is_file:
            problems.append((name, "is a file and must be uploaded"))
        elif name in inputs:
            problem = _problem(declared, inputs[name])
            if problem is not None:
                problems.append((name, problem))
            result[name] = inputs[name]
        elif declared.required and not (is_file and name in files):
            problems.append((name, "is required"))
        elif declared.default is not None:
            result[name] = declared.default
    if problems:
        raise InvalidToolParams.of_fields([(f"inputs.{name}", text) for name, text in problems])
    if len(json.dumps(result)) > INPUTS_LIMIT_CHARS:
        raise InvalidToolParams.of_field(
            "inputs", f"have more than {INPUTS_LIMIT_CHARS} characters"
        )
    return result


def _strangers(
    workflow: Workflow, inputs: Mapping[str, JsonValue], files: frozenset[str]
) -> list[tuple[str, str]]:
    """Return what was given and is not asked for."""
    known = ", ".join(workflow.inputs) or "none"
    takes = {name for name, one in workflow.inputs.items() if one.type is InputType.FILE}
    return [
        (name[:NAME_SHOWN_CHARS], f"is not an input (inputs: {known})")
        for name in inputs
        if name not in workflow.inputs
    ] + [(name[:NAME_SHOWN_CHARS], "takes no file") for name in sorted(files - takes)]


def _problem(declared: WorkflowInput, value: JsonValue) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if not declared.fits(value):
        wanted = declared.type.value
        if declared.type is InputType.ENUM:
            wanted = f"one of {', '.join(declared.values)}"
        return f"must be {wanted}"
    if isinstance(value, str):
        try:
            require_unicode("", value)
        except InvalidToolParams:
            return "has a lone surrogate, which is no character"
    return None


def _described(one: WorkflowInput) -> JsonObject:
    drawn: JsonObject = {
        "type": one.type.value,
        "required": one.required,
        "description": one.description,
        "default": one.default,
    }
    if one.values:
        drawn["values"] = list[JsonValue](one.values)
    return drawn
