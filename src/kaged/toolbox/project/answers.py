"""Whether what the operator says fits what was asked: one function per kind of question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, assert_never, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.store.interaction_rows import InteractionKind
from kaged.toolbox.project.errors import AnswerInvalid
from kaged.toolbox.project.uploads import Upload

ANSWER_LIMIT_CHARS = 64 * 1024


class CheckpointDecision(StrEnum):
    """What the operator decides at a checkpoint. `reply` goes on with what the text says."""

    APPROVE = "approve"
    REJECT = "reject"
    REPLY = "reply"


class FieldType(StrEnum):
    """What a field of a form takes."""

    TEXT = "text"
    MULTILINE = "multiline"
    NUMBER = "number"
    BOOLEAN = "boolean"
    SELECT = "select"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class OperatorAnswer:
    """What came from the operator, not checked yet."""

    answers: Mapping[str, JsonValue] = field(default_factory=dict)
    files: Mapping[str, Upload] = field(default_factory=dict)
    decision: CheckpointDecision | None = None
    text: str | None = None


_Problems = list[tuple[str, str]]


def checked_answer(
    kind: InteractionKind, payload: JsonObject, answer: OperatorAnswer
) -> JsonObject:
    """Return an answer as it is stored and as the agent gets it; files are filled in later.

    Raises AnswerInvalid.
    """
    problems: _Problems = []
    match kind:
        case InteractionKind.ASK:
            found = _answers(payload, answer, problems)
        case InteractionKind.FORM:
            found = _values(payload, answer, problems)
        case InteractionKind.CHECKPOINT:
            found = _decision(answer, problems)
        case _:
            assert_never(kind)
    if problems:
        raise AnswerInvalid.of(problems)
    return found


def _answers(payload: JsonObject, answer: OperatorAnswer, problems: _Problems) -> JsonObject:
    questions = {one["id"]: one for one in _listed(payload, "questions")}
    _only("answers", answer, problems)
    for name in answer.files:
        problems.append((name, "takes no file"))
    for name in answer.answers:
        if name not in questions:
            problems.append((name[:80], "was not asked"))
    given: JsonObject = {}
    for name, question in questions.items():
        value = answer.answers.get(name)
        chosen = value if isinstance(value, list) else [value]
        if value is None or value in ("", []):
            problems.append((name, "is required"))
        elif not all(isinstance(one, str) and one.strip() for one in chosen):
            problems.append((name, "must be a text, or a list of texts"))
        else:
            texts = cast("list[str]", chosen)
            _choices(name, question, texts, problems)
            given[name] = list[JsonValue](texts) if question["multiple"] else texts[0]
    return {"answers": given}


def _choices(name: str, question: dict[str, Any], chosen: list[str], problems: _Problems) -> None:
    if len(chosen) > 1 and not question["multiple"]:
        problems.append((name, "takes one choice only"))
    if len(set(chosen)) < len(chosen):
        problems.append((name, "names a choice twice"))
    if sum(map(len, chosen)) > ANSWER_LIMIT_CHARS:
        problems.append((name, f"has more than {ANSWER_LIMIT_CHARS} characters"))
    options = question["options"]
    if options and not set(chosen) <= set(options):
        problems.append((name, f"must be among: {', '.join(options)}"))
    unwritable = (name, "has a lone surrogate, which is no character")
    problems.extend(unwritable for one in chosen if not _writable(one))


def _values(payload: JsonObject, answer: OperatorAnswer, problems: _Problems) -> JsonObject:
    fields = {one["name"]: one for one in _listed(payload, "fields")}
    _only("answers", answer, problems)
    for name in (*answer.answers, *answer.files):
        if name not in fields:
            problems.append((name[:80], "is no field of this form"))
    given: JsonObject = {}
    for name, drawn in fields.items():
        kind = FieldType(drawn["type"])
        if kind is FieldType.FILE:
            if name in answer.answers:
                problems.append((name, "is a file and must be uploaded"))
            elif drawn["required"] and name not in answer.files:
                problems.append((name, "is required"))
            continue
        if name in answer.files:
            problems.append((name, "takes no file"))
        value = answer.answers.get(name)
        if value is None or value == "":
            if drawn["required"]:
                problems.append((name, "is required"))
            continue
        problem = _problem(kind, drawn, value)
        if problem is not None:
            problems.append((name, problem))
        given[name] = value
    return {"answers": given}


def _problem(kind: FieldType, drawn: dict[str, Any], value: JsonValue) -> str | None:
    match kind:
        case FieldType.TEXT | FieldType.MULTILINE | FieldType.SELECT:
            if not isinstance(value, str):
                return "must be a text"
            if len(value) > ANSWER_LIMIT_CHARS or not _writable(value):
                return f"must be a text of at most {ANSWER_LIMIT_CHARS} characters"
            if kind is FieldType.TEXT and "\n" in value:
                return "must be one line"
            if kind is FieldType.SELECT and value not in drawn["options"]:
                return f"must be one of: {', '.join(drawn['options'])}"
        case FieldType.NUMBER:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return "must be a number"
            if isinstance(value, float) and not math.isfinite(value):
                return "must be a finite number"
        case FieldType.BOOLEAN:
            if not isinstance(value, bool):
                return "must be true or false"
        case FieldType.FILE:
            return "is a file and must be uploaded"
        case _:
            assert_never(kind)
    return None


def _decision(answer: OperatorAnswer, problems: _Problems) -> JsonObject:
    for name in (*answer.answers, *answer.files):
        problems.append((name[:80], "a checkpoint takes a decision and a text only"))
    text = answer.text if answer.text and answer.text.strip() else None
    if answer.decision is None:
        problems.append(("decision", "is required: approve, reject or reply"))
    elif answer.decision is CheckpointDecision.REPLY and text is None:
        problems.append(("text", "is required for a reply"))
    if text is not None and (len(text) > ANSWER_LIMIT_CHARS or not _writable(text)):
        problems.append(("text", f"must be a text of at most {ANSWER_LIMIT_CHARS} characters"))
    return {"decision": answer.decision.value if answer.decision else None, "text": text}


def _only(what: str, answer: OperatorAnswer, problems: _Problems) -> None:
    if answer.decision is not None:
        problems.append(("decision", f"is for checkpoints; this takes {what}"))
    if answer.text is not None:
        problems.append(("text", f"is for checkpoints; this takes {what}"))


def _listed(payload: JsonObject, name: str) -> list[dict[str, Any]]:
    # Written by our own tools, after their check.
    return cast("list[dict[str, Any]]", payload[name])


def _writable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
