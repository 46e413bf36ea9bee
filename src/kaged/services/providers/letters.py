"""Mail as people read and write it: `describe_head`, `read_letter`, `write_letter`.

What comes in is whatever anybody on earth has sent: nothing in it is trusted, nothing of it is
followed, and every part has a limit.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage, Message
from email.parser import BytesHeaderParser, BytesParser
from email.utils import format_datetime, getaddresses, parsedate_to_datetime
from html.parser import HTMLParser
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.providers.mailbox import FetchedMessage

MESSAGE_LIMIT_BYTES: Final = 4 * 1024 * 1024
TEXT_LIMIT_CHARS: Final = 100_000
HEADER_LIMIT_CHARS: Final = 1000
ADDRESSES_LIMIT: Final = 100
PARTS_LIMIT: Final = 200
ATTACHMENTS_LIMIT: Final = 100

_ADDRESS: Final = re.compile(r"[^\s@<>\"(),:;\\\[\]]{1,64}@[A-Za-z0-9.-]{1,253}")
_MESSAGE_ID: Final = re.compile(r"<[^\s<>]{1,250}>")
_BLANK_LINES: Final = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Draft:
    """A letter to be written; addresses and texts as the caller gave them."""

    to: tuple[str, ...]
    subject: str
    text: str
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    in_reply_to: str | None = None
    references: tuple[str, ...] = ()


def describe_head(found: FetchedMessage) -> JsonObject:
    """Return what a list shows of a message."""
    head = BytesHeaderParser(policy=policy.compat32).parsebytes(found.content)
    return {
        "uid": found.uid,
        "from": next(iter(_addresses(head, "from")), ""),
        "to": [*_addresses(head, "to")],
        "subject": _header(head, "subject"),
        "date": _date(head),
        "seen": "\\Seen" in found.flags,
        "flagged": "\\Flagged" in found.flags,
        "size_bytes": found.size,
    }


def read_letter(found: FetchedMessage, max_chars: int) -> JsonObject:
    """Return a message as text, with a list of what is attached.

    HTML becomes plain text; nothing is loaded, no address in it is opened.
    """
    try:
        message = BytesParser(policy=policy.compat32).parsebytes(found.content)
    except RecursionError:  # thousands of parts within each other: nobody sends that by accident
        raise CapabilityInvalidInput("this message is nested too deeply to be read") from None
    plain: list[str] = []
    rich: list[str] = []
    attachments: list[JsonValue] = []
    for number, part in enumerate(_parts(message)):
        if number >= PARTS_LIMIT:
            break
        kind = part.get_content_type()
        name = part.get_filename()
        if part.is_multipart():
            continue
        if name is None and kind == "text/plain":
            plain.append(_text(part))
        elif name is None and kind == "text/html":
            rich.append(_html_text(_text(part)))
        elif len(attachments) < ATTACHMENTS_LIMIT:
            attachments.append(
                {
                    "name": _clean(name or "")[:255],
                    "content_type": kind[:100],
                    "size_bytes": len(_payload(part)),
                }
            )
    text = "\n".join(plain) if any(one.strip() for one in plain) else "\n".join(rich)
    text = _BLANK_LINES.sub("\n\n", text.replace("\r\n", "\n")).strip()
    return {
        **describe_head(found),
        "cc": list(_addresses(message, "cc")),
        "message_id": _header(message, "message-id"),
        "in_reply_to": _header(message, "in-reply-to"),
        "text": text[:max_chars],
        "truncated": len(text) > max_chars or len(found.content) < found.size,
        "attachments": attachments,
    }


def write_letter(draft: Draft, sender: str, *, now_ms: int, key: str | None) -> EmailMessage:
    """Write a letter from the account's own address, whatever the caller would like.

    With a `key` the letter has the same Message-ID each time it is written, so that a repeat is
    recognised by whoever receives it.

    Raises:
        CapabilityInvalidInput: an address is none, or a text cannot stand in a header.
    """
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = _written([sender])[0]
    for name, addresses in (("To", draft.to), ("Cc", draft.cc)):
        if addresses:
            message[name] = _written(addresses)
    if "\n" in draft.subject or "\r" in draft.subject:
        raise CapabilityInvalidInput("a subject has one line")
    message["Subject"] = draft.subject
    message["Date"] = format_datetime(datetime.fromtimestamp(now_ms / 1000, tz=UTC))
    message["Message-ID"] = _message_id(sender, key)
    if draft.in_reply_to is not None:
        message["In-Reply-To"] = _required_id(draft.in_reply_to)
        known = [*map(_required_id, draft.references), _required_id(draft.in_reply_to)]
        message["References"] = " ".join(dict.fromkeys(known))
    message.set_content(draft.text)
    return message


def recipients(draft: Draft) -> list[str]:
    """Return everybody a letter goes to, hidden ones included, each once."""
    found = [one.addr_spec for one in _written([*draft.to, *draft.cc, *draft.bcc])]
    if not found:
        raise CapabilityInvalidInput("to, cc and bcc are all empty")
    return list(dict.fromkeys(found))


def _written(addresses: Sequence[str]) -> list[Address]:
    if len(addresses) > ADDRESSES_LIMIT:
        raise CapabilityInvalidInput(f"more than {ADDRESSES_LIMIT} addresses")
    found: list[Address] = []
    for text in addresses:
        if not text.isprintable():
            raise CapabilityInvalidInput("an address holds control characters")
        pairs = getaddresses([text])
        if len(pairs) != 1 or _ADDRESS.fullmatch(pairs[0][1]) is None:
            raise CapabilityInvalidInput(f"not one e-mail address: {text[:100]!r}")
        found.append(Address(display_name=pairs[0][0][:200], addr_spec=pairs[0][1]))
    return found


def _message_id(sender: str, key: str | None) -> str:
    domain = sender.rpartition("@")[2]
    if not re.fullmatch(r"[A-Za-z0-9.-]+", domain):
        domain = "localhost"
    left = (
        secrets.token_hex(16)
        if key is None
        else hashlib.sha256(f"{sender}\0{key}".encode()).hexdigest()[:32]
    )
    return f"<{left}@{domain}>"


def _required_id(text: str) -> str:
    if _MESSAGE_ID.fullmatch(text.strip()) is None:
        raise CapabilityInvalidInput("in_reply_to is the message_id of a message: <…@…>")
    return text.strip()


def _parts(message: Message) -> Sequence[Message]:
    """Return the parts, outermost first, without following a chain that does not end."""
    found: list[Message] = [message]
    for part in found:
        payload = part.get_payload()
        if isinstance(payload, list) and len(found) < PARTS_LIMIT:
            found += [one for one in payload[:PARTS_LIMIT] if isinstance(one, Message)]
    return found


def _payload(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(part: Message) -> str:
    payload = _payload(part)[: TEXT_LIMIT_CHARS * 4]
    try:
        return payload.decode(part.get_content_charset("utf-8") or "utf-8", "replace")
    except (LookupError, ValueError):
        return payload.decode("utf-8", "replace")


def _header(head: Message, name: str) -> str:
    from email.header import decode_header, make_header  # noqa: PLC0415 - shadowed by a module name

    value = head.get(name)
    if value is None:
        return ""
    try:
        text = str(make_header(decode_header(str(value))))
    except (LookupError, ValueError, UnicodeError):
        text = str(value)
    return _clean(text)[:HEADER_LIMIT_CHARS]


def _addresses(head: Message, name: str) -> list[str]:
    written = _header(head, name)
    pairs = getaddresses([written])[:ADDRESSES_LIMIT]
    return [_clean(f"{shown} <{addr}>" if shown else addr) for shown, addr in pairs if addr]


def _date(head: Message) -> str | None:
    try:
        moment = parsedate_to_datetime(str(head.get("date", "")))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, TypeError, OverflowError):
        return None


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text).strip()


class _Stripper(HTMLParser):
    """Keeps the words of a page; scripts, styles and tags go."""

    _BREAKS: Final = frozenset({"p", "br", "div", "tr", "li", "h1", "h2", "h3", "table"})
    _SILENT: Final = frozenset({"script", "style", "head", "title"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT:
            self._silent += 1
        elif tag in self._BREAKS:
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SILENT and self._silent:
            self._silent -= 1

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)


def _html_text(page: str) -> str:
    stripper = _Stripper()
    stripper.feed(page[: TEXT_LIMIT_CHARS * 4])
    lines = ("".join(stripper.words)).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines)
