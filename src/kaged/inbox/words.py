"""A request as clients see it, and the answer to one that has choices."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, KagedError, iso_utc
from kaged.store.inbox_rows import InboxRequest

YES: Final = "yes"
NO: Final = "no"


def request_json(request: InboxRequest) -> JsonObject:
    """Write a request for people; `subject` stays with the kind."""
    answered, expires = request.answered_at_ms, request.expires_at_ms
    return {
        "id": request.id,
        "kind": request.kind.value,
        "state": request.state.value,
        "owner": request.owner,
        "project_id": request.project_id,
        "chat_id": request.chat_id,
        "title": request.title,
        "details": list(request.details),
        "choices": list(request.choices),
        "answer_schema": request.answer_schema,
        "digest": request.digest,
        "answered_by": request.answered_by,
        "created_at": iso_utc(request.created_at_ms),
        "expires_at": None if expires is None else iso_utc(expires),
        "answered_at": None if answered is None else iso_utc(answered),
    }


def event_json(request: InboxRequest) -> JsonObject:
    """Write a request for the event stream: without the details."""
    return {
        "id": request.id,
        "kind": request.kind.value,
        "state": request.state.value,
        "owner": request.owner,
        "asked_in": request.asked_in,
        "project_id": request.project_id,
        "chat_id": request.chat_id,
        "title": request.title,
    }


def chosen_yes(request: InboxRequest, answer: JsonObject) -> bool:
    """Return whether an answer to a yes-or-no request is yes. Raises `inbox_answer_invalid`."""
    choice = answer.get("choice")
    if not isinstance(choice, str) or choice not in request.choices:
        raise KagedError(
            "The answer is none of the choices.",
            code="inbox_answer_invalid",
            fix=f'Answer with {{"choice": …}}, one of: {", ".join(request.choices)}.',
            choices=list(request.choices),
        )
    return choice == YES
