"""What `<namespace>.email` offers, as schemas that agents and the host both hold calls against."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.services.contract import CapabilityDefinition, CapabilityOperation
from kaged.services.providers.letters import TEXT_LIMIT_CHARS

LIST_LIMIT: Final = 100
MOVE_LIMIT: Final = 200

_FOLDER: Final[JsonObject] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "default": "INBOX",
    "description": "Folder; `folders` lists them.",
}
_UID: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": 4294967295}
_LIMIT: Final[JsonObject] = {
    "type": "integer",
    "minimum": 1,
    "maximum": LIST_LIMIT,
    "default": 20,
    "description": "At most so many, the newest first.",
}
_DAY: Final[JsonObject] = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
_FREE: Final[JsonObject] = {"type": "string", "x-free-text": True}
_ADDRESSES: Final[JsonObject] = {
    "type": "array",
    "maxItems": 100,
    "items": {"type": "string", "minLength": 3, "maxLength": 320},
}
_HEAD: Final[JsonObject] = {
    "uid": _UID,
    "from": _FREE,
    "to": {"type": "array", "items": _FREE},
    "subject": _FREE,
    "date": {"type": ["string", "null"]},
    "seen": {"type": "boolean"},
    "flagged": {"type": "boolean"},
    "size_bytes": {"type": "integer"},
}
_FOUND: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "folder": _FREE,
        "messages": {"type": "array", "items": {"type": "object", "properties": _HEAD}},
        "total": {"type": "integer"},
        "next_before_uid": _UID,
    },
    "required": ["folder", "messages", "total"],
}
_LETTER: Final[JsonObject] = {
    "to": {**_ADDRESSES, "description": "Addresses, `Name <a@b>` or plain."},
    "cc": _ADDRESSES,
    "bcc": _ADDRESSES,
    "subject": {"type": "string", "maxLength": 500, "default": ""},
    "text": {"type": "string", "maxLength": 500_000, "description": "The text, plain."},
    "in_reply_to": {
        "type": "string",
        "maxLength": 255,
        "description": "The message_id of the message that this answers.",
    },
    "references": {
        "type": "array",
        "maxItems": 50,
        "items": {"type": "string", "maxLength": 255},
    },
}


def email_definition(namespace: str, *, sends: bool) -> CapabilityDefinition:
    """Describe a mailbox. Without a way to send there is no `send`."""
    operations = [
        CapabilityOperation(
            "folders",
            "List the folders of the mailbox.",
            input_schema=_object({}),
            output_schema=_result({"folders": {"type": "array", "items": _FREE}}, "folders"),
        ),
        CapabilityOperation(
            "list",
            "List messages of a folder, the newest first.",
            input_schema=_object(
                {
                    "folder": _FOLDER,
                    "limit": _LIMIT,
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
            input_schema=_object(
                {
                    "folder": _FOLDER,
                    "limit": _LIMIT,
                    **{
                        name: {"type": "string", "maxLength": 200}
                        for name in ("text", "from", "to", "subject")
                    },
                    "since": _DAY,
                    "before": _DAY,
                    "unseen": {"type": "boolean"},
                }
            ),
            output_schema=_FOUND,
        ),
        CapabilityOperation(
            "read",
            "Read one message as text, with a list of its attachments.",
            input_schema=_object(
                {
                    "folder": _FOLDER,
                    "uid": _UID,
                    "mark_seen": {"type": "boolean", "default": False},
                    "max_chars": {
                        "type": "integer",
                        "minimum": 100,
                        "maximum": TEXT_LIMIT_CHARS,
                        "default": TEXT_LIMIT_CHARS // 5,
                    },
                },
                "uid",
            ),
            output_schema=_result(
                {
                    **_HEAD,
                    "folder": _FREE,
                    "cc": {"type": "array", "items": _FREE},
                    "message_id": _FREE,
                    "in_reply_to": _FREE,
                    "text": _FREE,
                    "truncated": {"type": "boolean"},
                    "attachments": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "name": _FREE,
                                "content_type": {"type": "string"},
                                "size_bytes": {"type": "integer"},
                            },
                        },
                    },
                },
                *("uid", "subject", "text", "attachments"),
            ),
        ),
        CapabilityOperation(
            "draft",
            "Put a letter into the drafts folder, for the person to look at and send.",
            mutating=True,
            input_schema=_object(_LETTER, "text"),
            output_schema=_result({"message_id": _FREE, "folder": _FREE}, "message_id", "folder"),
        ),
        CapabilityOperation(
            "move",
            "Move messages into another folder.",
            mutating=True,
            input_schema=_object(
                {
                    "folder": _FOLDER,
                    "uids": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MOVE_LIMIT,
                        "uniqueItems": True,
                        "items": _UID,
                    },
                    "to_folder": {"type": "string", "minLength": 1, "maxLength": 255},
                },
                *("uids", "to_folder"),
            ),
            output_schema=_result(
                {
                    "moved": {"type": "integer"},
                    "missing": {"type": "array", "items": _UID},
                    "to_folder": _FREE,
                },
                "moved",
            ),
        ),
    ]
    if sends:
        operations.append(
            CapabilityOperation(
                "send",
                "Send a letter from the linked address.",
                mutating=True,
                input_schema=_object(_LETTER, "to", "text"),
                output_schema=_result(
                    {
                        "message_id": _FREE,
                        "accepted": {"type": "integer"},
                        "refused": {"type": "array", "items": _FREE},
                        "copy_in": _FREE,
                    },
                    *("message_id", "accepted", "refused"),
                ),
            )
        )
    return CapabilityDefinition(
        id=f"{namespace}.email",
        description="A mailbox: read, search, write and sort mail.",
        sensitive=True,
        operations={one.name: one for one in operations},
    )


def _object(properties: JsonObject, *required: str) -> JsonObject:
    return {**_result(properties, *required), "additionalProperties": False}


def _result(properties: JsonObject, *required: str) -> JsonObject:
    names: list[JsonValue] = [*required]
    return {"type": "object", "properties": properties, "required": names}
