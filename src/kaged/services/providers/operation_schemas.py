"""What `<namespace>.email` and `<namespace>.calendar` offer: the schemas of their operations.

Agents read them, and the host holds every call and every output against them.
"""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.services.contract import CapabilityDefinition, CapabilityOperation
from kaged.services.providers.letters import TEXT_LIMIT_CHARS

MAIL_LIST_LIMIT: Final = 100
MOVE_LIMIT: Final = 200
EVENT_LIST_LIMIT: Final = 200


def _text(low: int, high: int, **more: JsonValue) -> JsonObject:
    size: JsonObject = {"minLength": low} if low else {}
    return {"type": "string", **size, "maxLength": high, **more}


def _whole(low: int, high: int, **more: JsonValue) -> JsonObject:
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def _list(items: JsonObject, **more: JsonValue) -> JsonObject:
    return {"type": "array", **more, "items": items}


def _result(properties: JsonObject, *required: str) -> JsonObject:
    names: list[JsonValue] = [*required]
    return {"type": "object", "properties": properties, "required": names}


def _input(properties: JsonObject, *required: str) -> JsonObject:
    return {**_result(properties, *required), "additionalProperties": False}


_STRING: Final[JsonObject] = {"type": "string"}
_FREE: Final[JsonObject] = {"type": "string", "x-free-text": True}
_NUMBER: Final[JsonObject] = {"type": "integer"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_PERHAPS: Final[JsonObject] = {"type": ["string", "null"]}

# ---- mail

_FOLDER: Final = _text(1, 255, default="INBOX", description="Folder; `folders` lists them.")
_UID: Final = _whole(1, 4294967295)
_MAIL_LIMIT: Final = _whole(
    1, MAIL_LIST_LIMIT, default=20, description="At most so many, the newest first."
)
_DAY: Final[JsonObject] = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
_ADDRESSES: Final = _list(_text(3, 320), maxItems=100)
_HEAD: Final[JsonObject] = {
    "uid": _UID,
    "from": _FREE,
    "to": _list(_FREE),
    "subject": _FREE,
    "date": _PERHAPS,
    "seen": _FLAG,
    "flagged": _FLAG,
    "size_bytes": _NUMBER,
}
_FOUND: Final = _result(
    {
        "folder": _FREE,
        "messages": _list({"type": "object", "properties": _HEAD}),
        "total": _NUMBER,
        "next_before_uid": _UID,
    },
    *("folder", "messages", "total"),
)
_ATTACHMENT: Final[JsonObject] = {
    "type": "object",
    "properties": {"name": _FREE, "content_type": _STRING, "size_bytes": _NUMBER},
}
_LETTER: Final[JsonObject] = {
    "to": {**_ADDRESSES, "description": "Addresses, `Name <a@b>` or plain."},
    "cc": _ADDRESSES,
    "bcc": _ADDRESSES,
    "subject": _text(0, 500, default=""),
    "text": _text(0, 500_000, description="The text, plain."),
    "in_reply_to": _text(0, 255, description="The message_id of the message that this answers."),
    "references": _list(_text(0, 255), maxItems=50),
}
_MAIL_OPERATIONS: Final = (
    CapabilityOperation(
        "folders",
        "List the folders of the mailbox.",
        input_schema=_input({}),
        output_schema=_result({"folders": _list(_FREE)}, "folders"),
    ),
    CapabilityOperation(
        "list",
        "List messages of a folder, the newest first.",
        input_schema=_input(
            {
                "folder": _FOLDER,
                "limit": _MAIL_LIMIT,
                "before_uid": {
                    **_UID,
                    "description": "Go on where an earlier list ended (next_before_uid).",
                },
            }
        ),
        output_schema=_FOUND,
    ),
    CapabilityOperation(
        "search",
        "Find messages of a folder by words, sender, recipient, subject or day.",
        input_schema=_input(
            {
                "folder": _FOLDER,
                "limit": _MAIL_LIMIT,
                **{name: _text(0, 200) for name in ("text", "from", "to", "subject")},
                "since": _DAY,
                "before": _DAY,
                "unseen": _FLAG,
            }
        ),
        output_schema=_FOUND,
    ),
    CapabilityOperation(
        "read",
        "Read one message as text, with a list of its attachments.",
        input_schema=_input(
            {
                "folder": _FOLDER,
                "uid": _UID,
                "mark_seen": {**_FLAG, "default": False},
                "max_chars": _whole(100, TEXT_LIMIT_CHARS, default=TEXT_LIMIT_CHARS // 5),
            },
            "uid",
        ),
        output_schema=_result(
            {
                **_HEAD,
                "folder": _FREE,
                "cc": _list(_FREE),
                "message_id": _FREE,
                "in_reply_to": _FREE,
                "text": _FREE,
                "truncated": _FLAG,
                "attachments": _list(_ATTACHMENT),
            },
            *("uid", "subject", "text", "attachments"),
        ),
    ),
    CapabilityOperation(
        "draft",
        "Put a letter into the drafts folder, for the person to look at and send.",
        mutating=True,
        input_schema=_input(_LETTER, "text"),
        output_schema=_result({"message_id": _FREE, "folder": _FREE}, "message_id", "folder"),
    ),
    CapabilityOperation(
        "move",
        "Move messages into another folder.",
        mutating=True,
        input_schema=_input(
            {
                "folder": _FOLDER,
                "uids": _list(_UID, minItems=1, maxItems=MOVE_LIMIT, uniqueItems=True),
                "to_folder": _text(1, 255),
            },
            *("uids", "to_folder"),
        ),
        output_schema=_result(
            {"moved": _NUMBER, "missing": _list(_UID), "to_folder": _FREE}, "moved"
        ),
    ),
)
_SEND: Final = CapabilityOperation(
    "send",
    "Send a letter from the linked address.",
    mutating=True,
    input_schema=_input(_LETTER, "to", "text"),
    output_schema=_result(
        {"message_id": _FREE, "accepted": _NUMBER, "refused": _list(_FREE), "copy_in": _FREE},
        *("message_id", "accepted", "refused"),
    ),
)


def email_definition(namespace: str, *, sends: bool) -> CapabilityDefinition:
    """Describe a mailbox. Without a way to send there is no `send`."""
    operations = (*_MAIL_OPERATIONS, _SEND) if sends else _MAIL_OPERATIONS
    return CapabilityDefinition(
        id=f"{namespace}.email",
        description="A mailbox: read, search, write and sort mail.",
        sensitive=True,
        operations={one.name: one for one in operations},
    )


# ---- calendars

_PLACE: Final = _text(1, 1024)
_MOMENT: Final = _text(10, 40, description="A time with a zone (2026-02-24T20:10:00Z), or a day.")
_EVENT: Final[JsonObject] = {
    "title": _text(1, 500),
    "start": _MOMENT,
    "end": _MOMENT,
    "timezone": _text(
        0, 64, description="Zone for times without one, and for recurring sense: Europe/Berlin."
    ),
    "location": _text(0, 500),
    "description": _text(0, 20_000),
}
_RANGE: Final[JsonObject] = {
    "calendar": {**_PLACE, "description": "One of `calendars`; all by default."},
    "start": {**_MOMENT, "description": "From when; now by default."},
    "end": {**_MOMENT, "description": "Until when; 30 days after start by default."},
    "limit": _whole(1, EVENT_LIST_LIMIT, default=50),
}
_VERSION: Final = _text(
    0, 256, description="The version that was read: refuses when it was changed since."
)
_LISTED_EVENT: Final = _result(
    {
        "event_id": _STRING,
        "version": _STRING,
        "title": _FREE,
        "start": _PERHAPS,
        "end": _PERHAPS,
        "all_day": _FLAG,
        "location": _FREE,
        "description": _FREE,
        "status": _STRING,
        "recurring": _FLAG,
    },
    *("event_id", "title", "start"),
)
_EVENTS: Final = _result({"events": _list(_LISTED_EVENT), "total": _NUMBER}, "events", "total")
_CALENDAR: Final = _result({"calendar": _STRING, "name": _FREE, "writable": _FLAG}, "calendar")
_CALENDAR_OPERATIONS: Final = (
    CapabilityOperation(
        "calendars",
        "List the calendars of the account.",
        input_schema=_input({}),
        output_schema=_result({"calendars": _list(_CALENDAR)}, "calendars"),
    ),
    CapabilityOperation(
        "list",
        "List events in a span of time, the earliest first.",
        input_schema=_input(_RANGE),
        output_schema=_EVENTS,
    ),
    CapabilityOperation(
        "search",
        "Find events in a span of time by words of title, place or description.",
        input_schema=_input({**_RANGE, "text": _text(1, 200)}, "text"),
        output_schema=_EVENTS,
    ),
    CapabilityOperation(
        "create",
        "Put a new event into a calendar.",
        mutating=True,
        input_schema=_input({"calendar": _PLACE, **_EVENT}, "title", "start", "end"),
        output_schema=_result({"event_id": _STRING}, "event_id"),
    ),
    CapabilityOperation(
        "update",
        "Change an event; what is left out stays. A series is changed as a whole.",
        mutating=True,
        input_schema=_input({"event_id": _PLACE, "version": _VERSION, **_EVENT}, "event_id"),
        output_schema=_result({"updated": _FLAG}, "updated"),
    ),
    CapabilityOperation(
        "delete",
        "Delete an event. A series is deleted as a whole.",
        mutating=True,
        input_schema=_input({"event_id": _PLACE, "version": _VERSION}, "event_id"),
        output_schema=_result({"deleted": _FLAG}, "deleted"),
    ),
)


def calendar_definition(namespace: str) -> CapabilityDefinition:
    """Describe a calendar account."""
    return CapabilityDefinition(
        id=f"{namespace}.calendar",
        description="Calendars: look up, create, change and delete events.",
        sensitive=True,
        operations={one.name: one for one in _CALENDAR_OPERATIONS},
    )
