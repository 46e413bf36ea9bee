"""`LinkPage`: where a person types the password of an account, instead of into a chat.

A page on loopback. `offer` gives it a one-time address; whoever opens that address can fill in its
fields, a password or a token among them, which are tried at once at the real service. If they work,
the page shows a short-lived code, and only that code goes through the chat. `take` trades the code
in, once. The pages that were open when the daemon ended are opened again by the next one, where
they were.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from kaged.base import Clock, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.services.contract import AuthField, FlowStarter
from kaged.services.errors import CapabilityError, CapabilityRateLimited
from kaged.services.secret_search import CallSecrets

OFFER_LIFE_S: Final = 600
OFFERS_LIMIT: Final = 256
ATTEMPTS_LIMIT: Final = 5
BODY_LIMIT_BYTES: Final = 8 * 1024
HEAD_LIMIT_BYTES: Final = 16 * 1024
CONNECTIONS_LIMIT: Final = 32
REQUEST_S: Final = 20.0
_FIELD_LIMIT_CHARS: Final = 512
_NAME_LIMIT_CHARS: Final = 80
_TICKET_BYTES: Final = 24
_CODE_BYTES: Final = 15

_log = get_logger("kaged.linkpage")

_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\n"
    "Cache-Control: no-store\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'\r\n"
    "Connection: close\r\n"
)
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:28rem;margin:12vh auto;padding:0 1rem}"
    "label{display:block;margin:.8rem 0}input{width:100%;font:inherit;padding:.4rem}"
    "button{font:inherit;padding:.5rem 1.2rem}code{font-size:1.2rem;user-select:all}"
    ".no{color:#a00}"
)

Try = Callable[[dict[str, str]], Awaitable[JsonObject]]
"""Tries what was typed into the fields at the service; gives the credential to keep.

Raises CapabilityError with a text for the person when they do not work.
"""


@dataclass(frozen=True, slots=True)
class LinkForm:
    """What a page says and asks for: what is linked, as what, for whom, and who began it.

    Secret fields must be filled in, others may stay empty.
    """

    title: str
    fields: tuple[AuthField, ...]
    capability_id: str
    person: str
    begun_by: tuple[FlowStarter, ...] = ()


@dataclass(slots=True)
class _Offer:
    form: LinkForm
    try_: Try
    ends_s: float
    attempts: int = 0
    busy: bool = False
    code_hash: bytes | None = None
    credential: JsonObject | None = field(default=None, repr=False)


class LinkPage:
    """Serves the page from the first offer until `close`.

    `public_url` is how people reach it, when that is through a proxy with TLS; by default it is
    the loopback address itself.
    """

    def __init__(
        self, clock: Clock, *, port: int = 0, public_url: str | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._clock = clock
        self._host = host
        self._port = port
        self._public_url = public_url
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._turns = asyncio.Semaphore(CONNECTIONS_LIMIT)
        self._offers: dict[str, _Offer] = {}
        # Pages that ended before their time, and when they would have: no restart opens them.
        self._ended: dict[str, float] = {}

    async def offer(self, form: LinkForm, try_: Try) -> tuple[str, str, int]:
        """Open a page for one account; returns its address, the ticket in it, and when it ends.

        Raises:
            CapabilityRateLimited: too many are open.
        """
        await self._listen(self._port)
        self._forget_old()
        if len(self._offers) >= OFFERS_LIMIT:
            raise CapabilityRateLimited(
                "too many accounts are being linked right now", retry_after_seconds=60
            )
        ticket = secrets.token_urlsafe(_TICKET_BYTES)
        self._offers[ticket] = _Offer(form, try_, self._clock.monotonic_s() + OFFER_LIFE_S)
        return (
            self._address(ticket),
            ticket,
            self._clock.now_ms() + OFFER_LIFE_S * 1000,
        )

    async def reopen(
        self, ticket: str, address: str, ends_at_ms: int, form: LinkForm, try_: Try
    ) -> bool:
        """Open a page again that an earlier daemon offered at `address`.

        False when it has ended in this one, or its port is taken by somebody else.
        """
        self._forget_old()
        left_s = (ends_at_ms - self._clock.now_ms()) / 1000
        if ticket in self._ended or left_s <= 0:
            return False
        if ticket not in self._offers:
            try:
                await self._listen(self._port or urlsplit(address).port or 0)
            except OSError:
                return False
            # With a port of the system's own choice the pages may be elsewhere by now.
            elsewhere = address != self._address(ticket)
            if elsewhere or len(self._offers) >= OFFERS_LIMIT:
                return False
            self._offers[ticket] = _Offer(form, try_, self._clock.monotonic_s() + left_s)
        self._offers[ticket].form = form  # it may name one more who asks for the same
        return True

    def end(self, ticket: str) -> None:
        """Close a page before its time."""
        offer = self._offers.pop(ticket, None)
        if offer is not None:
            self._ended[ticket] = offer.ends_s

    def take(self, ticket: str, code: str) -> JsonObject | None:
        """Return the credential behind a code of this ticket, once; None when there is none."""
        self._forget_old()
        offer = self._offers.get(ticket)
        if offer is None or offer.code_hash is None or offer.credential is None:
            return None
        if not hmac.compare_digest(offer.code_hash, _hashed(code)):
            return None
        self.end(ticket)
        return offer.credential

    async def close(self) -> None:
        """Stop serving and forget everything. Safe to call twice."""
        self._offers.clear()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    # -- own -------------------------------------------------------------------------------------

    async def _listen(self, port: int) -> None:
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.start_server(
                    self._serve, self._host, port, limit=HEAD_LIMIT_BYTES
                )

    def _address(self, ticket: str) -> str:
        return f"{self._base_url()}/link/{quote(ticket)}"

    def _base_url(self) -> str:
        if self._public_url is not None:
            return self._public_url.rstrip("/")
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://{self._host}:{port}"

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        for ticket in [key for key, one in self._offers.items() if one.ends_s <= now_s]:
            del self._offers[ticket]
        self._ended = {key: ends_s for key, ends_s in self._ended.items() if ends_s > now_s}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._turns, asyncio.timeout(REQUEST_S):
                status, body = await self._answer(reader)
                data = body.encode("utf-8")
                head = f"HTTP/1.1 {status}\r\n{_HEADERS}Content-Length: {len(data)}\r\n\r\n"
                writer.write(head.encode("ascii") + data)
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, ValueError):
            # A browser that left, or something that is no browser: nobody to answer.
            return
        except Exception as error:  # noqa: BLE001 - the edge: one request must not end the page
            _log.error("linkpage.failed", error=type(error).__name__)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, path = (*first.split(" "), "", "")[:2]
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        scheme, _, rest = self._base_url().lower().partition("://")
        own = rest.partition("/")[0]
        if headers.get("host", "").lower() != own:  # a foreign name is a rebinding attack
            return "421 Misdirected Request", _page("Wrong address", "<p>Open the link itself.</p>")
        self._forget_old()
        prefix, ticket = path[:6], path[6:]
        offer = self._offers.get(ticket) if prefix == "/link/" else None
        if offer is None:
            return "404 Not Found", _page(
                "This link has ended", "<p>Ask for a new one where you got it.</p>"
            )
        if method == "GET":
            return "200 OK", _form(offer)
        if method != "POST":
            return "405 Method Not Allowed", _page("No", "")
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > BODY_LIMIT_BYTES:
            return "413 Content Too Large", _page("Too long", "")
        origin = headers.get("origin", "null")  # pages without a referrer send null
        if origin != "null" and origin.lower() != f"{scheme}://{own}":
            return "403 Forbidden", _page("Another page sent this", "")
        fields = parse_qs((await reader.readexactly(int(length))).decode("utf-8", "replace"))
        return await self._try(ticket, offer, {name: values[-1] for name, values in fields.items()})

    async def _try(self, ticket: str, offer: _Offer, given: dict[str, str]) -> tuple[str, str]:
        fields = offer.form.fields
        typed = {one.name: given.get(one.name, "") for one in fields}
        if offer.code_hash is not None or offer.busy:
            return "409 Conflict", _page("Already linked", "<p>Ask for a new link.</p>")
        wrong = any(one.secret and not typed[one.name].strip() for one in fields) or any(
            len(one) > _FIELD_LIMIT_CHARS or not one.isprintable() for one in typed.values()
        )
        if wrong:
            return "400 Bad Request", _form(offer, "Fill in the form, without line breaks.")
        offer.attempts += 1
        offer.busy = True
        try:
            credential = await offer.try_(typed)
        except CapabilityError as error:
            if offer.attempts >= ATTEMPTS_LIMIT:
                self.end(ticket)
                return "403 Forbidden", _page("Too many attempts", "<p>Ask for a new link.</p>")
            return "401 Unauthorized", _form(offer, _without_secrets(error.message, fields, typed))
        finally:
            offer.busy = False
        code = secrets.token_urlsafe(_CODE_BYTES)
        offer.code_hash, offer.credential = _hashed(code), credential
        return "200 OK", _page(
            "It works",
            "<p>Give this code to your assistant, in the chat where you began. It works once, for "
            f"ten minutes, and only for <b>{html.escape(offer.form.person)}</b>: give it to "
            "nobody else.</p>"
            f"<p><code>{html.escape(code)}</code></p>",
        )


def _without_secrets(message: str, fields: tuple[AuthField, ...], typed: dict[str, str]) -> str:
    """Return why something was refused, unless that repeats what was typed into a secret field."""
    known = CallSecrets()
    known.learn(*(typed[one.name] for one in fields if one.secret))
    return "The service does not accept this." if known.found_in_text(message) else message


def _form(offer: _Offer, problem: str = "") -> str:
    said = f'<p class="no">{html.escape(problem)}</p>' if problem else ""
    person, capability = html.escape(offer.form.person), html.escape(offer.form.capability_id)
    return _page(
        html.escape(offer.form.title),
        f"<p>This links an account as <b>{capability}</b> for <b>{person}</b>, whose assistant may "
        f"use it from then on.{begun_by(offer.form)} Go on only if you are {person} and began "
        "this yourself. If somebody sent you this link, close the page.</p>"
        "<p>What you type here goes to this machine's daemon, which keeps it encrypted. "
        f"Your assistant never sees it.</p>{said}"
        '<form method="post" autocomplete="off">'
        f"{''.join(map(_input, offer.form.fields))}"
        "<button>Link this account</button></form>",
    )


def begun_by(form: LinkForm) -> str:
    """Return which agents asked for it, or that the person did so without any."""
    agents = [_agent(one) for one in form.begun_by if not one.in_person]
    said = ""
    if agents:
        said += f" It was begun by {' and by '.join(agents)}."
    if len(agents) < len(form.begun_by):
        person = html.escape(form.person)
        said += f" {person} {'also ' if agents else ''}began it directly, without an agent."
    return said or " It is not known who began it."


def _agent(one: FlowStarter) -> str:
    agent = "an agent" if one.agent is None else f"the agent <b>{_name(one.agent)}</b>"
    if one.project is None:
        return f"{agent} of an unknown project"
    return f"{agent} of the project <b>{_name(one.project)}</b>"


def _name(text: str) -> str:
    """Return a name as it can be shown: on one line, not too long, without any markup."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    if len(shown) > _NAME_LIMIT_CHARS:
        shown = shown[: _NAME_LIMIT_CHARS - 1] + "…"
    return html.escape(shown)


def _input(one: AuthField) -> str:
    kind = 'type="password" required' if one.secret else 'type="text"'
    name = html.escape(one.name, quote=True)
    return f'<label>{html.escape(one.label)} <input name="{name}" {kind}></label>'


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1>{body}</html>"
    )


def _hashed(code: str) -> bytes:
    return hashlib.sha256(code.strip().encode("utf-8", "replace")).digest()
