"""`ImapEmail`: a mailbox as a capability; reads over IMAP, sends over SMTP."""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from email.message import EmailMessage
from typing import Any, Final, TypeVar, cast

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.contract import CapabilityDefinition, InvokeCall
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityInvalidInput,
    account_refused,
)
from kaged.services.providers import letters
from kaged.services.providers.linking import LinkedProvider
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.mailbox import (
    MAIL_SERVER,
    Criterion,
    Login,
    Mailbox,
    MailHost,
    Security,
    reach,
)
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.operation_schemas import email_definition
from kaged.services.tls import tls_fault

WORKERS: Final = 8
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EmailSettings:
    """One mail service, as the operator describes it. Without `smtp` nothing can be sent."""

    namespace: str
    imap: MailHost
    smtp: MailHost | None = None
    drafts_folder: str = "Drafts"
    sent_folder: str | None = None
    timeout_s: float = 30.0


class ImapEmail(LinkedProvider):
    """The provider of `<namespace>.email`."""

    def __init__(
        self,
        settings: EmailSettings,
        *,
        clock: Clock,
        page: LinkPage,
        oauth: OAuthClient | None = None,
    ) -> None:
        title = f"Link a mailbox at {settings.imap.host}"
        super().__init__(settings.namespace, page=page, page_title=title, oauth=oauth)
        self._settings = settings
        self._clock = clock
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="kaged-mail")

    async def definitions(self) -> list[CapabilityDefinition]:
        """Return the one capability."""
        return [email_definition(self.namespace, sends=self._settings.smtp is not None)]

    async def invoke(self, call: InvokeCall) -> JsonObject:
        """Run one operation."""
        assert call.credentials is not None, "every operation needs an account"
        runner = {
            "folders": self._folders,
            "list": self._found,
            "search": self._found,
            "read": self._read,
            "send": self._send,
            "draft": self._put_draft,
            "move": self._move,
        }.get(call.operation)
        if runner is None:
            raise CapabilityInvalidInput(f"there is no operation {call.operation!r}")
        held = await self._credential(call.credentials)
        sender = str(held.get("account_email") or held.get("username") or "")
        login = self._login(held)
        return await self._in_thread(lambda: runner(login, sender, call))

    async def close(self) -> None:
        """Let the threads go as soon as they are done with what they have."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- operations, in a thread -----------------------------------------------------------------

    def _folders(self, login: Login, _sender: str, _call: InvokeCall) -> JsonObject:
        with self._mailbox(login) as box:
            names: list[JsonValue] = [*box.folders()]
        return {"folders": names}

    def _found(self, login: Login, _sender: str, call: InvokeCall) -> JsonObject:
        """List a folder, or search it: only `list` takes `before_uid`, only `search` criteria."""
        given = call.input_data
        limit = cast("int", given.get("limit", 20))
        folder = str(given.get("folder", "INBOX"))
        criteria = _criteria(given)
        before_uid = given.get("before_uid")
        with self._mailbox(login) as box:
            box.open(folder)
            uids = box.search(criteria)
            if isinstance(before_uid, int):
                uids = [uid for uid in uids if uid < before_uid]
            chosen = uids[-limit:][::-1]
            heads: list[JsonValue] = [letters.describe_head(one) for one in box.heads(chosen)]
        answer: JsonObject = {"folder": folder, "messages": heads, "total": len(uids)}
        if len(uids) > len(chosen) and chosen:
            answer["next_before_uid"] = chosen[-1]
        return answer

    def _read(self, login: Login, _sender: str, call: InvokeCall) -> JsonObject:
        given = call.input_data
        uid, folder = cast("int", given["uid"]), str(given.get("folder", "INBOX"))
        mark = given.get("mark_seen") is True
        with self._mailbox(login) as box:
            box.open(folder, change=mark)
            found = box.message(uid, letters.MESSAGE_LIMIT_BYTES)
            if found is None:
                raise CapabilityInvalidInput(f"there is no message {uid} in {folder!r}")
            if mark:
                box.mark_seen(uid)
        limit = cast("int", given.get("max_chars", letters.TEXT_LIMIT_CHARS // 5))
        return {"folder": folder, **letters.read_letter(found, limit)}

    def _send(self, login: Login, sender: str, call: InvokeCall) -> JsonObject:
        draft = _draft(call.input_data)
        everybody = letters.recipients(draft)
        letter = self._letter(draft, sender, call)
        refused = self._deliver(login, sender, letter, everybody)
        answer: JsonObject = {
            "message_id": str(letter["Message-ID"]),
            "accepted": len(everybody) - len(refused),
            "refused": [*refused],
        }
        sent = self._settings.sent_folder
        if sent is not None:
            # It is on its way whatever happens now: a missing copy is no reason to say otherwise.
            with (
                suppress(CapabilityBackendUnavailable, CapabilityInvalidInput),
                self._mailbox(login) as box,
            ):
                box.append(sent, letter.as_bytes(), r"(\Seen)")
                answer["copy_in"] = sent
        return answer

    def _put_draft(self, login: Login, sender: str, call: InvokeCall) -> JsonObject:
        draft = _draft(call.input_data)
        letter = self._letter(draft, sender, call)
        if draft.bcc:
            letter["Bcc"] = ", ".join(draft.bcc)
        folder = self._settings.drafts_folder
        with self._mailbox(login) as box:
            box.append(folder, letter.as_bytes(), r"(\Draft \Seen)")
        return {"message_id": str(letter["Message-ID"]), "folder": folder}

    def _move(self, login: Login, _sender: str, call: InvokeCall) -> JsonObject:
        given = call.input_data
        uids = cast("list[int]", given["uids"])
        folder, target = str(given.get("folder", "INBOX")), str(given["to_folder"])
        with self._mailbox(login) as box:
            box.open(folder, change=True)
            there = {one.uid for one in box.heads(uids)}
            missing: list[JsonValue] = [uid for uid in uids if uid not in there]
            if there:
                box.move(sorted(there), target)
        return {"moved": len(there), "missing": missing, "to_folder": target}

    # -- own -------------------------------------------------------------------------------------

    def _mailbox(self, login: Login) -> Mailbox:
        return Mailbox(self._settings.imap, login, self._settings.timeout_s)

    def _letter(self, draft: letters.Draft, sender: str, call: InvokeCall) -> EmailMessage:
        if "@" not in sender:
            raise CapabilityInvalidInput(
                "the linked account has no e-mail address to write from; link it again with one"
            )
        key = call.idempotency_key
        return letters.write_letter(draft, sender, now_ms=self._clock.now_ms(), key=key)

    def _deliver(
        self, login: Login, sender: str, letter: EmailMessage, everybody: list[str]
    ) -> list[str]:
        """Hand a letter over; returns the addresses that the server did not take."""
        host = self._settings.smtp
        if host is None:
            raise CapabilityInvalidInput("this mail service is set up for reading only")
        try:
            with _smtp(host, self._settings.timeout_s) as smtp:
                if login.access_token is not None:
                    said = f"user={login.username}\x01auth=Bearer {login.access_token}\x01\x01"
                    smtp.ehlo_or_helo_if_needed()
                    smtp.auth("XOAUTH2", lambda _challenge=None: said)
                else:
                    smtp.login(login.username, login.password or "")
                refused = smtp.send_message(letter, sender, everybody)
        except smtplib.SMTPAuthenticationError as error:
            raise account_refused("the mail server does not accept this login") from error
        except smtplib.SMTPRecipientsRefused as error:
            raise CapabilityInvalidInput("the mail server accepts none of the addresses") from error
        except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
            raise CapabilityInvalidInput("the mail server does not accept this message") from error
        except (smtplib.SMTPException, OSError) as error:
            raise tls_fault(error, MAIL_SERVER) or CapabilityBackendUnavailable(
                "the mail server cannot be reached or broke off"
            ) from error
        return sorted(refused)

    def _login(self, held: JsonObject) -> Login:
        if self._oauth is not None:
            sender = str(held.get("account_email") or held.get("username") or "")
            return Login(sender, access_token=str(held["access_token"]))
        return Login(str(held.get("username")), str(held.get("password")))

    async def _try_login(self, user: str, password: str) -> None:
        await self._log_in(Login(user, password))

    async def _check(self, held: JsonObject) -> bool:
        await self._log_in(self._login(held))
        return True

    async def _reach(self) -> None:
        settings = self._settings
        await self._in_thread(lambda: reach(settings.imap, settings.timeout_s))

    async def _log_in(self, login: Login) -> None:
        def attempt() -> None:
            with self._mailbox(login):
                return

        await self._in_thread(attempt)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _smtp(host: MailHost, timeout_s: float) -> smtplib.SMTP:
    if host.security is Security.TLS:
        return smtplib.SMTP_SSL(host.host, host.port, timeout=timeout_s, context=host.tls())
    smtp = smtplib.SMTP(host.host, host.port, timeout=timeout_s)
    if host.security is Security.STARTTLS:
        try:
            smtp.starttls(context=host.tls())
        except BaseException:
            smtp.close()
            raise
    return smtp


def _criteria(given: JsonObject) -> list[Criterion]:
    """Write a search in IMAP's words."""
    found: list[Criterion] = []
    for name, word in (("text", "TEXT"), ("from", "FROM"), ("to", "TO"), ("subject", "SUBJECT")):
        value = given.get(name)
        if isinstance(value, str) and value.strip():
            if not value.isprintable():
                raise CapabilityInvalidInput(f"{name} holds control characters")
            found.append(Criterion(word, value.strip()))
    for name, word in (("since", "SINCE"), ("before", "BEFORE")):
        value = given.get(name)
        if isinstance(value, str):
            found.append(Criterion(f"{word} {_imap_date(name, value)}"))
    if given.get("unseen") is True:
        found.append(Criterion("UNSEEN"))
    return found


def _imap_date(name: str, text: str) -> str:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise CapabilityInvalidInput(f"{name} is a day such as 2026-02-24") from None
    return f"{day.day:02d}-{_MONTHS[day.month - 1]}-{day.year:04d}"


def _draft(given: JsonObject) -> letters.Draft:
    def texts(name: str) -> tuple[str, ...]:
        return tuple(map(str, cast("list[Any]", given.get(name, []))))

    reply = given.get("in_reply_to")
    return letters.Draft(
        to=texts("to"),
        cc=texts("cc"),
        bcc=texts("bcc"),
        subject=str(given.get("subject", "")),
        text=str(given.get("text", "")),
        in_reply_to=None if reply is None else str(reply),
        references=texts("references"),
    )
