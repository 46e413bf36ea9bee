"""Questions of agents and of the daemon, put to the person at the editor."""

from __future__ import annotations

from typing import Any, Final

from acp import text_block, tool_content
from acp.interfaces import Client
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    ElicitationFormSessionMode,
    ElicitationSchema,
    PermissionOption,
    ToolCallUpdate,
)

from kaged.cli.output import harmless

MAX_OPTIONS: Final = 20
_ALWAYS: Final = ("always", "session", "run")
_NO: Final = ("no", "reject", "deny", "decline")
_TYPES: Final = {"number": "number", "checkbox": "boolean", "boolean": "boolean"}


class Asker:
    """Asks one editor, by the means that it offers."""

    def __init__(self, editor: Client, offered: ClientCapabilities | None) -> None:
        self._editor = editor
        elicitation = None if offered is None else offered.elicitation
        self._has_forms = elicitation is not None and elicitation.form is not None

    async def interaction(self, session_id: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Ask what an agent asked; return the body of the answer.

        None when the editor has no means for it, or the person did not answer.
        """
        payload = asked["payload"]
        if asked["kind"] == "checkpoint":
            options = {"approve": "Approve", "reject": "Reject"}
            words = [payload["message"], payload.get("detail") or ""]
            chosen = await self._choose(session_id, asked["request_id"], words, options)
            return None if chosen is None else {"decision": chosen, "text": None}
        questions = payload.get("questions", [])
        only = questions[0] if len(questions) == 1 else None
        if only and 0 < len(only["options"]) <= MAX_OPTIONS and not only["multiple"]:
            options = {str(number): one for number, one in enumerate(only["options"])}
            words = [only["title"], only["description"]]
            chosen = await self._choose(session_id, asked["request_id"], words, options)
            if chosen is None:
                return None
            return {"answers": {only["id"]: only["options"][int(chosen)]}, "files": {}}
        return await self._fill_in(session_id, payload) if self._has_forms else None

    async def request(self, session_id: str, asked: dict[str, Any]) -> str | None:
        """Ask for one of the choices of an inbox request; None when there was no answer."""
        options = {one: one.replace("_", " ").capitalize() for one in asked["choices"]}
        words = [asked["title"], *asked["details"]]
        return await self._choose(session_id, asked["id"], words, options)

    async def _choose(
        self, session_id: str, about: str, words: list[str], options: dict[str, str]
    ) -> str | None:
        text = "\n".join(harmless(one) for one in words if one)
        answer = await self._editor.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(
                tool_call_id=about,
                title=harmless(words[0]),
                kind="other",
                status="pending",
                content=[tool_content(text_block(text))],
            ),
            options=[
                PermissionOption(option_id=one, name=harmless(name), kind=_kind(one))
                for one, name in options.items()
            ],
        )
        if isinstance(answer.outcome, AllowedOutcome) and answer.outcome.option_id in options:
            return answer.outcome.option_id
        return None

    async def _fill_in(self, session_id: str, payload: dict[str, Any]) -> dict[str, Any] | None:
        questions, fields = payload.get("questions", []), payload.get("fields", [])
        if any(field["type"] == "file" for field in fields):
            return None
        properties = {one["id"]: _question(one) for one in questions}
        properties |= {one["name"]: _field(one) for one in fields}
        required = [one["id"] for one in questions]
        required += [one["name"] for one in fields if one["required"]]
        schema = ElicitationSchema.model_validate({"properties": properties, "required": required})
        titles = [str(one.get("title") or one.get("label")) for one in (*questions, *fields)]
        answer = await self._editor.create_elicitation(
            harmless("; ".join(titles)),
            ElicitationFormSessionMode(session_id=session_id, requested_schema=schema),
        )
        if not isinstance(answer, AcceptElicitationResponse):
            return None
        return {"answers": dict(answer.content or {}), "files": {}}


def answer_in_words(asked: dict[str, Any], text: str) -> dict[str, Any] | None:
    """Return a prompt as the answer to a question; None where it cannot be one."""
    if asked["kind"] == "checkpoint":
        return {"decision": "reply", "text": text}
    questions = asked["payload"].get("questions", [])
    if len(questions) != 1:
        return None
    answer = [text] if questions[0]["multiple"] else text
    return {"answers": {questions[0]["id"]: answer}, "files": {}}


def question_text(asked: dict[str, Any]) -> str:
    """Return what is asked as a paragraph of the conversation, and how it can be answered."""
    payload = asked["payload"]
    lines = [str(payload[name]) for name in ("message", "detail") if payload.get(name)]
    for one in (*payload.get("questions", ()), *payload.get("fields", ())):
        lines.append(f"{one.get('title') or one.get('label')}")
        lines += [f"- {option}" for option in one.get("options") or ()]
    how = (
        "Your next message is the answer."
        if answer_in_words(asked, "") is not None
        else f"Answer with `kaged answer {asked['request_id']}` in a terminal."
    )
    return "\n\n" + "\n".join([*map(harmless, lines), "", how])


def _question(one: dict[str, Any]) -> dict[str, Any]:
    shown = {"title": one["title"], "description": one["description"]}
    if not one["options"]:
        return {"type": "string", **shown}
    if one["multiple"]:
        return {"type": "array", "items": {"type": "string", "enum": one["options"]}, **shown}
    return {"type": "string", "enum": one["options"], **shown}


def _field(one: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"title": one["label"], "description": one["description"]}
    if one["options"]:
        return {"type": "string", "enum": one["options"], **shown}
    return {"type": _TYPES.get(one["type"], "string"), **shown}


def _kind(option: str) -> Any:
    if option in _NO:
        return "reject_once"
    return "allow_always" if option in _ALWAYS else "allow_once"
