"""`Mailbox`: one IMAP conversation, blocking, for a worker thread. Every text is quoted here.

The standard library's client sends what it is given; whatever reaches it from a caller goes
through `quoted` first, so that a folder name can never become a command.
"""

from __future__ import annotations

import base64
import imaplib
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, Self

from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityInvalidInput,
    account_refused,
)
from kaged.services.tls import tls_fault

MAIL_SERVER: Final = "the mail server"
FOLDERS_LIMIT: Final = 1000
UIDS_LIMIT: Final = 200_000
HEADER_BYTES: Final = 64 * 1024
_SAFE_NAME_CHARS: Final = 255

_LIST_LINE: Final = re.compile(rb'\((?P<flags>[^)]*)\) (?:"(?P<sep>[^"]{1,2})"|NIL) (?P<name>.+)')
_UID: Final = re.compile(rb"\bUID (\d+)")
_SIZE: Final = re.compile(rb"\bRFC822\.SIZE (\d+)")
_FLAGS: Final = re.compile(rb"\bFLAGS \(([^)]*)\)")


class Security(StrEnum):
    """How the line to a mail server is protected; `plain` is for loopback only."""

    TLS = "tls"
    STARTTLS = "starttls"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class MailHost:
    """One mail server."""

    host: str
    port: int
    security: Security = Security.TLS
    ca_file: str | None = None

    def tls(self) -> ssl.SSLContext:
        """Return what its certificate is checked with."""
        return ssl.create_default_context(cafile=self.ca_file)


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in: a password, or an OAuth access token."""

    username: str
    password: str | None = field(default=None, repr=False)
    access_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of a search: a word of IMAP's, and a text of the caller's if it takes one."""

    word: str
    text: str = ""

    @property
    def plain(self) -> bool:
        """Whether it can stand in a command as it is."""
        return self.text.isascii()

    def words(self) -> tuple[str, ...]:
        """Return it as words of a command."""
        return (self.word, quoted(self.text)) if self.text else (self.word,)


@dataclass(frozen=True, slots=True)
class FetchedMessage:
    """One message as far as it was asked for."""

    uid: int
    size: int
    flags: tuple[str, ...]
    content: bytes


class Mailbox:
    """A logged-in conversation. Use it as a context; it logs out at the end.

    Raises, on entering: `capability_auth_required` when the server does not take the login,
    CapabilityBackendUnavailable when there is no talking to it.
    """

    def __init__(self, host: MailHost, login: Login, timeout_s: float) -> None:
        self._host = host
        self._login = login
        self._timeout_s = timeout_s
        self._imap: imaplib.IMAP4 | None = None

    def __enter__(self) -> Self:
        imap = _guarded(lambda: connect(self._host, self._timeout_s))
        try:
            _log_in(imap, self._login)
        except BaseException:
            with suppress(OSError, imaplib.IMAP4.error):
                imap.shutdown()
            raise
        self._imap = imap
        return self

    def __exit__(self, *_: object) -> None:
        imap, self._imap = self._imap, None
        if imap is not None:
            with suppress(OSError, imaplib.IMAP4.error):
                imap.logout()

    # -- folders ---------------------------------------------------------------------------------

    def folders(self) -> list[str]:
        """Return the folders that can be opened."""
        lines = self._ok("LIST", lambda imap: imap.list('""', "*"))
        found: list[str] = []
        for line in lines[:FOLDERS_LIMIT]:
            raw = line[0] + b" " + quoted_bytes(line[1]) if isinstance(line, tuple) else line
            match = _LIST_LINE.match(raw) if isinstance(raw, bytes) else None
            if match is not None and b"\\Noselect" not in match["flags"]:
                found.append(decode_name(_unquoted(match["name"])))
        return found

    def open(self, folder: str, *, change: bool = False) -> int:
        """Open a folder; returns how many messages it has. Raises CapabilityInvalidInput."""
        name = quoted(encode_name(folder))
        kind, data = _guarded(lambda: self._there.select(name, readonly=not change))
        if kind != "OK":
            raise CapabilityInvalidInput(f"there is no folder {folder!r}")
        count = data[0] if data else b"0"
        return int(count) if isinstance(count, bytes) and count.isdigit() else 0

    # -- messages --------------------------------------------------------------------------------

    def search(self, criteria: Sequence[Criterion]) -> list[int]:
        """Return the uids that match all criteria, the newest last."""
        plain = [word for one in criteria if one.plain for word in one.words()]
        others = [one for one in criteria if not one.plain]
        if not others:
            return sorted(self._search(plain or ["ALL"], None))
        # Text beyond ASCII goes as a literal, and the library sends one per command.
        return sorted(set.intersection(*(self._search(plain, one) for one in others)))

    def heads(self, uids: Sequence[int]) -> list[FetchedMessage]:
        """Return the headers of messages, without marking them as seen."""
        return self._fetch(uids, f"BODY.PEEK[HEADER]<0.{HEADER_BYTES}>")

    def message(self, uid: int, limit_bytes: int) -> FetchedMessage | None:
        """Return the beginning of one message, without marking it as seen."""
        found = self._fetch([uid], f"BODY.PEEK[]<0.{limit_bytes}>")
        return found[0] if found else None

    def mark_seen(self, uid: int) -> None:
        """Mark a message as seen."""
        self._ok("STORE", lambda imap: imap.uid("STORE", str(uid), "+FLAGS.SILENT", r"(\Seen)"))

    def move(self, uids: Sequence[int], folder: str) -> None:
        """Move messages into another folder. Raises CapabilityInvalidInput for no such folder."""
        joined, name = ",".join(map(str, uids)), quoted(encode_name(folder))
        able = self._able()
        command = "MOVE" if "MOVE" in able else "COPY"
        kind, _ = _guarded(lambda: self._there.uid(command, joined, name))
        if kind != "OK":
            raise CapabilityInvalidInput(f"the messages cannot be moved to {folder!r}")
        if command == "COPY":
            self._ok(
                "STORE",
                lambda imap: imap.uid("STORE", joined, "+FLAGS.SILENT", r"(\Deleted)"),
            )
            # Without UIDPLUS an EXPUNGE would take other deleted messages along: leave them marked.
            if "UIDPLUS" in able:
                self._ok("EXPUNGE", lambda imap: imap.uid("EXPUNGE", joined))

    def append(self, folder: str, message: bytes, flags: str) -> None:
        """Put a message into a folder. Raises CapabilityInvalidInput for no such folder."""
        name = quoted(encode_name(folder))
        kind, _ = _guarded(lambda: self._there.append(name, flags, "", message))
        if kind != "OK":
            raise CapabilityInvalidInput(f"there is no folder {folder!r} to put the message in")

    # -- own -------------------------------------------------------------------------------------

    @property
    def _there(self) -> imaplib.IMAP4:
        assert self._imap is not None, "used outside of its context"
        return self._imap

    def _able(self) -> frozenset[str]:
        """Return what the server can do after the login; the library asks before it."""
        data = self._ok("CAPABILITY", lambda imap: imap.capability())
        said = b" ".join(one for one in data if isinstance(one, bytes))
        return frozenset(said.decode("ascii", "replace").upper().split())

    def _search(self, words: Sequence[str], literal: Criterion | None) -> set[int]:
        def ask(imap: imaplib.IMAP4) -> tuple[str, list[Any]]:
            if literal is None:
                return imap.uid("SEARCH", *words)
            imap.literal = literal.text.encode("utf-8")  # pyright: ignore[reportAttributeAccessIssue] - as the library's own append does
            return imap.uid("SEARCH", "CHARSET", "UTF-8", *words, literal.word)

        data = self._ok("SEARCH", ask)
        joined = b" ".join(one for one in data if isinstance(one, bytes))
        return {int(word) for word in joined.split()[-UIDS_LIMIT:] if word.isdigit()}

    def _fetch(self, uids: Sequence[int], what: str) -> list[FetchedMessage]:
        if not uids:
            return []
        joined = ",".join(map(str, uids))
        items = f"(UID FLAGS RFC822.SIZE {what})"
        data = self._ok("FETCH", lambda imap: imap.uid("FETCH", joined, items))
        found: dict[int, FetchedMessage] = {}
        wanted = frozenset(uids)
        for at, part in enumerate(data):
            if not isinstance(part, tuple):
                continue
            # The items may stand before or behind the literal.
            after = data[at + 1] if at + 1 < len(data) else b""
            text = part[0] + b" " + (after if isinstance(after, bytes) else b"")
            uid, size, flags = _UID.search(text), _SIZE.search(text), _FLAGS.search(text)
            if uid is None or int(uid[1]) not in wanted:
                continue
            found[int(uid[1])] = FetchedMessage(
                int(uid[1]),
                int(size[1]) if size else len(part[1]),
                tuple(flags[1].decode("ascii", "replace").split()) if flags else (),
                part[1],
            )
        return [found[uid] for uid in uids if uid in found]

    def _ok(self, name: str, ask: Callable[[imaplib.IMAP4], tuple[str, list[Any]]]) -> list[Any]:
        kind, data = _guarded(lambda: ask(self._there))
        if kind != "OK":
            raise CapabilityBackendUnavailable(f"the mail server refused {name}")
        return [one for one in data if one is not None]


def quoted(text: str) -> str:
    """Return an ASCII text as an IMAP quoted string.

    Raises CapabilityInvalidInput for control characters, which end a command.
    """
    if not text.isascii() or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise CapabilityInvalidInput("a text for the mail server holds control characters")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quoted_bytes(raw: bytes) -> bytes:
    """Return bytes as an IMAP quoted string."""
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def encode_name(folder: str) -> str:
    """Write a folder name in IMAP's own UTF-7."""
    if not folder or len(folder) > _SAFE_NAME_CHARS or not folder.isprintable():
        raise CapabilityInvalidInput("that is not the name of a folder")
    found: list[str] = []
    run: list[str] = []

    def flush() -> None:
        if run:
            raw = base64.b64encode("".join(run).encode("utf-16-be")).decode("ascii")
            found.append("&" + raw.rstrip("=").replace("/", ",") + "-")
            run.clear()

    for char in folder:
        if " " <= char <= "~":
            flush()
            found.append("&-" if char == "&" else char)
        else:
            run.append(char)
    flush()
    return "".join(found)


def decode_name(name: str) -> str:
    """Read a folder name from IMAP's own UTF-7; what is not in it stays as it is."""

    def replace(match: re.Match[str]) -> str:
        inner = match[1]
        if not inner:
            return "&"
        padded = inner.replace(",", "/") + "=" * (-len(inner) % 4)
        try:
            return base64.b64decode(padded).decode("utf-16-be")
        except ValueError:
            return match[0]

    return re.sub(r"&([A-Za-z0-9+,]*)-", replace, name)


def _unquoted(raw: bytes) -> str:
    text = raw.decode("ascii", "replace").strip()
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def reach(host: MailHost, timeout_s: float) -> None:
    """Read a mail server's greeting. Raises CapabilityBackendUnavailable."""
    imap = _guarded(lambda: connect(host, timeout_s))
    with suppress(OSError, imaplib.IMAP4.error):
        imap.logout()


def connect(host: MailHost, timeout_s: float) -> imaplib.IMAP4:
    """Connect to a mail server, without logging in. Raises what `imaplib` does."""
    if host.security is Security.TLS:
        return imaplib.IMAP4_SSL(host.host, host.port, ssl_context=host.tls(), timeout=timeout_s)
    imap = imaplib.IMAP4(host.host, host.port, timeout=timeout_s)
    if host.security is Security.STARTTLS:
        try:
            imap.starttls(host.tls())
        except BaseException:
            imap.shutdown()
            raise
    return imap


def _log_in(imap: imaplib.IMAP4, login: Login) -> None:
    try:
        if login.access_token is not None:
            token = login.access_token
            said = f"user={login.username}\x01auth=Bearer {token}\x01\x01"
            imap.authenticate("XOAUTH2", lambda _: said.encode())
        else:
            secret = f"\0{login.username}\0{login.password}".encode()
            imap.authenticate("PLAIN", lambda _: secret)
    except (imaplib.IMAP4.abort, OSError) as error:
        raise tls_fault(error, MAIL_SERVER) or _unavailable() from error
    except imaplib.IMAP4.error as error:
        # The server's own words may repeat what it was given.
        raise account_refused("the mail server does not accept this login") from error


def _guarded(ask: Callable[[], Any]) -> Any:
    """Raise one error for whatever goes wrong with the connection or the server."""
    try:
        return ask()
    except (imaplib.IMAP4.error, OSError, EOFError) as error:
        raise tls_fault(error, MAIL_SERVER) or _unavailable() from error


def _unavailable() -> CapabilityBackendUnavailable:
    return CapabilityBackendUnavailable("the mail server cannot be reached or broke off")
