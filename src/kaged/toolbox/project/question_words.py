"""A question of an agent in words, for the inbox: what is asked, and what an answer looks like."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.store.interaction_rows import InteractionKind
from kaged.toolbox.project.answers import CheckpointDecision, OperatorAnswer
from kaged.toolbox.project.errors import AnswerInvalid
from kaged.toolbox.project.uploads import Upload

TITLE_CHARS: Final = 200
_TYPES: Final = {"number": "number", "boolean": "boolean"}


def title_of(kind: InteractionKind, payload: JsonObject) -> str:
    """Return what is asked in one short line."""
    if kind is InteractionKind.CHECKPOINT:
        found = str(payload.get("message", ""))
    else:
        found = "; ".join(str(one.get("title") or one.get("label")) for one in _items(payload))
    line = " ".join(found.split())
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1]}…"


def details_of(kind: InteractionKind, payload: JsonObject) -> list[str]:
    """Return what is asked in full, line by line."""
    if kind is InteractionKind.CHECKPOINT:
        texts = (payload.get("message"), payload.get("detail"))
        return [line for text in texts if text for line in str(text).splitlines()]
    lines: list[str] = []
    for one in _items(payload):
        lines.append(f"{_name(one)}: {one.get('title') or one.get('label')}")
        if one.get("description"):
            lines.append(str(one["description"]))
        lines += [f"- {option}" for option in one.get("options") or ()]
    return lines


def answer_schema_of(kind: InteractionKind, payload: JsonObject) -> JsonObject:
    """Return the JSON Schema of an answer."""
    if kind is InteractionKind.CHECKPOINT:
        decisions: list[JsonValue] = [one.value for one in CheckpointDecision]
        return {
            "type": "object",
            "required": ["decision"],
            "properties": {"decision": {"enum": decisions}, "text": {"type": ["string", "null"]}},
        }
    answers: JsonObject = {}
    files: JsonObject = {}
    for one in _items(payload):
        if one.get("type") == "file":
            files[_name(one)] = {"type": "object", "required": ["name", "content_base64"]}
        else:
            answers[_name(one)] = _value_schema(one)
    made: JsonObject = {"answers": {"type": "object", "properties": answers}}
    if files:
        made["files"] = {"type": "object", "properties": files}
    return {"type": "object", "required": ["answers"], "properties": made}


def parse_answer(answer: Mapping[str, Any]) -> OperatorAnswer:
    """Read an answer that came as JSON. Raises AnswerInvalid."""
    answers, files = answer.get("answers") or {}, answer.get("files") or {}
    decision, text = answer.get("decision"), answer.get("text")
    problems: list[tuple[str, str]] = []
    for name, value, wanted in (
        ("answers", answers, dict), ("files", files, dict), ("text", text, (str, type(None))),
    ):  # fmt: skip
        if not isinstance(value, wanted):
            problems.append((name, "has the wrong type"))
    if decision is not None and decision not in set(CheckpointDecision):
        problems.append(("decision", "is none of approve, reject, reply"))
    problems += [
        (name, "is not known")
        for name in answer
        if name not in {"answers", "files", "decision", "text"}
    ]
    if problems:
        raise AnswerInvalid.of(problems)
    return OperatorAnswer(
        answers,
        {str(field): _upload(str(field), file) for field, file in files.items()},
        None if decision is None else CheckpointDecision(decision),
        text,
    )


def _upload(field: str, file: Any) -> Upload:
    known = cast("dict[str, Any]", file) if isinstance(file, dict) else {}
    name, content = known.get("name"), known.get("content_base64")
    try:
        if isinstance(name, str) and isinstance(content, str):
            return Upload(name, base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError):
        pass
    raise AnswerInvalid.of([(field, "is no file: name and content_base64 are wanted")])


def _value_schema(item: Mapping[str, Any]) -> JsonObject:
    options: list[JsonValue] = list(item.get("options") or ())
    value: JsonObject = (
        {"enum": options} if options else {"type": _TYPES.get(str(item.get("type")), "string")}
    )
    return {"type": "array", "items": value} if item.get("multiple") else value


def _items(payload: JsonObject) -> list[dict[str, Any]]:
    found = payload.get("questions") or payload.get("fields") or []
    return cast("list[dict[str, Any]]", found)


def _name(item: Mapping[str, Any]) -> str:
    return str(item.get("id") or item.get("name"))
