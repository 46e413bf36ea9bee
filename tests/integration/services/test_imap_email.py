"""imap.email against a real Dovecot and a real SMTP server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from fakes.mail_servers import Dovecot, SmtpSink, deliver, dovecot, smtp_sink
from fakes.oauth_server import CLIENT_ID, CLIENT_SECRET, oauth_server
from fakes.provider_lab import ProviderLab
from kaged.base import SystemClock
from kaged.services.errors import (
    CapabilityAuthFlowInvalid,
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
)
from kaged.services.providers.imap_email import EmailSettings, ImapEmail
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.mailbox import MailHost, Security
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.oauth_server import OAuthSettings
from raising import raises_code
from requirements import requirement

USERS = {"ann@example.org": "ann-pass-1", "bob@example.org": "bob-pass-1", "eve": "eve-pass-1"}


def letter(
    subject: str, text: str = "Hello.", sender: str = "Zoë <zoe@example.net>"
) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = sender, "ann@example.org", subject
    message["Date"] = "Tue, 24 Feb 2026 20:10:00 +0100"
    message["Message-ID"] = f"<{abs(hash(subject))}@example.net>"
    message.set_content(text)
    return message


@pytest.fixture(scope="module")
def server() -> Iterator[Dovecot]:
    with dovecot(USERS) as running:
        invitation = letter("Invitation", "Plain words.")
        invitation.add_alternative("<p>Rich <b>words</b></p>", subtype="html")
        invitation.add_attachment(
            b"x" * 500, maintype="application", subtype="pdf", filename="a.pdf"
        )
        page = EmailMessage()
        page["Subject"] = "Größe"
        page.set_content(
            "<style>b{}</style><h1>Big</h1><script>evil()</script><p>One<br>two &amp; three</p>",
            subtype="html",
        )
        numbered = [letter(f"Number {n}", f"needle-{n} in hay") for n in range(5)]
        deliver(running, "ann@example.org", [invitation, page, *numbered])
        yield running


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with smtp_sink(USERS) as running:
        yield running


@pytest.fixture
async def lab(server: Dovecot, sink: SmtpSink) -> AsyncIterator[ProviderLab]:
    page = LinkPage(SystemClock())
    provider = ImapEmail(
        EmailSettings(
            namespace="imap",
            imap=MailHost("127.0.0.1", server.port, Security.PLAIN),
            smtp=MailHost("127.0.0.1", sink.port, Security.PLAIN),
            sent_folder="Sent",
        ),
        clock=SystemClock(),
        page=page,
    )
    made = ProviderLab(provider, "email")
    await made.credential.put(
        {
            "kind": "password",
            "username": "ann@example.org",
            "password": USERS["ann@example.org"],
            "account_email": "ann@example.org",
        }
    )
    yield made
    await provider.close()
    await page.close()


async def enter(url: str, **fields: str) -> httpx.Response:
    """Type into the page as a browser would."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
        shown = await browser.get(url)
        assert shown.status_code == 200
        assert 'type="password"' in shown.text
        return await browser.post(url, data=fields)


async def test_a_mailbox_is_linked_by_a_password_that_no_chat_sees(lab: ProviderLab) -> None:
    begun = await lab.begin("work")
    assert begun.auth_url.startswith("http://127.0.0.1:")
    wrong = await enter(begun.auth_url, email="ann@example.org", password="nonsense")
    assert wrong.status_code == 401
    assert "does not accept this login" in wrong.text
    right = await enter(begun.auth_url, email="ann@example.org", password="ann-pass-1")
    found = re.search(r"<code>([^<]+)</code>", right.text)
    assert found is not None
    assert "ann-pass-1" not in right.text
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.complete(begun, "guess", "work")
    done = await lab.complete(begun, found[1], "work")
    assert (done.account_ref, done.metadata) == (
        "acct_work",
        {"account_email": "ann@example.org"},
    )
    assert done.credential_material == {}
    assert (await lab.invoke("list"))["total"] >= 7
    with pytest.raises(CapabilityAuthFlowInvalid):  # once is enough
        await lab.complete(begun, found[1], "work")


async def test_the_page_gives_up_after_five_wrong_passwords(lab: ProviderLab) -> None:
    begun = await lab.begin()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
        answers = [
            (await browser.post(begun.auth_url, data={"email": "eve", "password": f"no-{n}"}))
            for n in range(6)
        ]
    assert [one.status_code for one in answers] == [401, 401, 401, 401, 403, 404]


async def test_the_page_answers_its_own_address_only(lab: ProviderLab) -> None:
    begun = await lab.begin()
    base = begun.auth_url.partition("/link/")[0]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
        rebound = await browser.get(begun.auth_url, headers={"Host": "evil.example"})
        foreign = await browser.post(
            begun.auth_url,
            data={"email": "eve", "password": "eve-pass-1"},
            headers={"Origin": "http://evil.example"},
        )
        guessed = await browser.get(f"{base}/link/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
        long = await browser.post(begun.auth_url, content=b"x" * 10_000)
        strange = await browser.request("PUT", begun.auth_url)
    statuses = [one.status_code for one in (rebound, foreign, guessed, long, strange)]
    assert statuses == [421, 403, 404, 413, 405]
    assert rebound.headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in rebound.headers["content-security-policy"]


async def test_list_shows_the_newest_first_and_goes_on(lab: ProviderLab) -> None:
    first = await lab.invoke("list", limit=3)
    subjects = [one["subject"] for one in first["messages"]]
    assert subjects == ["Number 4", "Number 3", "Number 2"]
    assert first["messages"][0]["from"] == "Zoë <zoe@example.net>"
    assert first["messages"][0]["date"] == "2026-02-24T19:10:00Z"
    rest = await lab.invoke("list", limit=100, before_uid=first["next_before_uid"])
    assert [one["subject"] for one in rest["messages"]][:2] == ["Number 1", "Number 0"]
    assert "next_before_uid" not in rest


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"text": "needle-3"}, ["Number 3"]),
        ({"subject": "Größe"}, ["Größe"]),
        ({"from": "zoe@example.net", "subject": "Invit"}, ["Invitation"]),
        ({"since": "2099-01-01"}, []),
        ({"subject": 'Number 1" OR ALL'}, []),
        ({"text": "needle-2", "before": "2099-01-01", "unseen": True}, ["Number 2"]),
    ],
)
async def test_search_finds_what_is_meant(
    lab: ProviderLab, given: dict[str, Any], expected: list[str]
) -> None:
    found = await lab.invoke("search", **given)
    assert [one["subject"] for one in found["messages"]] == expected


@requirement("SC-PROV-07")
async def test_read_gives_text_and_attachments_and_leaves_the_message_unseen(
    lab: ProviderLab,
) -> None:
    messages = (await lab.invoke("search", subject="Invitation"))["messages"]
    read = await lab.invoke("read", uid=messages[0]["uid"])
    assert read["text"] == "Plain words."
    assert read["attachments"] == [
        {"name": "a.pdf", "content_type": "application/pdf", "size_bytes": 500}
    ]
    assert read["seen"] is False
    page = (await lab.invoke("search", subject="Größe"))["messages"][0]
    shown = await lab.invoke("read", uid=page["uid"], mark_seen=True)
    assert shown["text"] == "Big\nOne\ntwo & three"
    again = (await lab.invoke("search", subject="Größe"))["messages"][0]
    assert again["seen"] is True


@requirement("SC-PROV-07")
async def test_send_goes_out_from_the_linked_address_and_is_kept(
    lab: ProviderLab, sink: SmtpSink
) -> None:
    before = len(sink.letters)
    sent = await lab.invoke(
        "send",
        "key-1",
        to=["Bob <bob@example.org>"],
        bcc=["hidden@example.org"],
        subject="Übung",
        text="Grüße\n",
        in_reply_to="<1@example.net>",
    )
    envelope = sink.letters[before]
    message = message_from_bytes(envelope.content, policy=policy.default)
    assert sink.logins[-1] == "ann@example.org"
    assert envelope.mail_from == "ann@example.org"
    assert envelope.rcpt_tos == ["bob@example.org", "hidden@example.org"]
    assert (message["From"], message["Subject"]) == ("ann@example.org", "Übung")
    assert message["Bcc"] is None
    assert message["References"] == "<1@example.net>"
    assert sent["accepted"] == 2
    assert sent["copy_in"] == "Sent"
    again = await lab.invoke("send", "key-1", to=["bob@example.org"], text="x")
    assert again["message_id"] == sent["message_id"] == message["Message-ID"]
    kept = await lab.invoke("list", folder="Sent")
    assert "Übung" in [one["subject"] for one in kept["messages"]]


async def test_a_draft_waits_in_its_folder(lab: ProviderLab) -> None:
    put = await lab.invoke("draft", to=["bob@example.org"], subject="Later", text="…")
    found = await lab.invoke("search", folder=put["folder"], subject="Later")
    assert len(found["messages"]) == 1


async def test_move_takes_messages_along_and_names_those_that_are_gone(
    lab: ProviderLab, server: Dovecot
) -> None:
    deliver(server, "ann@example.org", [letter("Movable")])
    uid = (await lab.invoke("search", subject="Movable"))["messages"][0]["uid"]
    moved = await lab.invoke("move", uids=[uid, 99999], to_folder="Drafts")
    assert (moved["moved"], moved["missing"]) == (1, [99999])
    assert (await lab.invoke("search", subject="Movable"))["messages"] == []
    assert len((await lab.invoke("search", folder="Drafts", subject="Movable"))["messages"]) == 1
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("move", uids=[1], to_folder="No such folder")


async def test_folders_are_listed(lab: ProviderLab) -> None:
    assert {"INBOX", "Drafts", "Sent"} <= set((await lab.invoke("folders"))["folders"])


@pytest.mark.parametrize(
    "given",
    [
        {"to": ["a@b.c\r\nBcc: x@y.z"], "text": "x"},
        {"to": ["a@b.c, d@e.f"], "text": "x"},
        {"to": ["nobody"], "text": "x"},
        {"to": ["a@b.c"], "subject": "a\nBcc: x@y.z", "text": "x"},
        {"to": ["a@b.c"], "in_reply_to": "<a b@c>\r\nX: y", "text": "x"},
        {"to": [], "text": "x"},
    ],
)
async def test_a_letter_cannot_smuggle_headers_or_recipients(
    lab: ProviderLab, sink: SmtpSink, given: dict[str, Any]
) -> None:
    before = len(sink.letters)
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("send", **given)
    assert len(sink.letters) == before


@pytest.mark.parametrize(
    "folder", ['INBOX" NOOP', "a\r\nA1 LOGOUT", "../bob@example.org", "no/such", "\x7f"]
)
async def test_a_folder_name_is_never_a_command(lab: ProviderLab, folder: str) -> None:
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("list", folder=folder)
    assert (await lab.invoke("list"))["total"] >= 7


async def test_a_withdrawn_password_asks_for_a_new_link(lab: ProviderLab) -> None:
    assert lab.credential.held is not None
    lab.credential.held["password"] = "changed-elsewhere"
    tries: list[tuple[str, dict[str, Any]]] = [
        ("list", {}),
        ("send", {"to": ["a@b.c"], "text": "x"}),
    ]
    for operation, given in tries:
        with raises_code("capability_auth_required", CapabilityError) as caught:
            await lab.invoke(operation, **given)
        assert "changed-elsewhere" not in str(caught.value)
    lab.credential.held = None
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("list")


async def test_a_server_that_is_away_is_a_backend_error() -> None:
    page = LinkPage(SystemClock())
    provider = ImapEmail(
        EmailSettings("imap", MailHost("127.0.0.1", 1, Security.PLAIN)),
        clock=SystemClock(),
        page=page,
    )
    lab = ProviderLab(provider, "email")
    await lab.credential.put({"username": "ann", "password": "x"})
    with pytest.raises(CapabilityBackendUnavailable):
        await lab.invoke("list")
    assert "send" not in (await provider.definitions())[0].operations
    await provider.close()


async def test_oauth_opens_the_mailbox_and_the_way_out() -> None:
    """XOAUTH2 at a real Dovecot, which asks the authorization server whose token it is."""
    with oauth_server() as oauth:
        url = f"{oauth.url}/tokeninfo?access_token="
        with dovecot(USERS, url) as server, smtp_sink({}) as sink:
            deliver(server, "ann@example.org", [letter("By token")])
            clock, page = SystemClock(), LinkPage(SystemClock())
            client = OAuthClient(
                OAuthSettings(
                    client_id=CLIENT_ID,
                    token_url=f"{oauth.url}/token",
                    authorization_url="https://login.example/authorize",
                    userinfo_url=f"{oauth.url}/userinfo",
                ),
                clock=clock,
                client_secret=CLIENT_SECRET,
                timeout_s=30,
            )
            provider = ImapEmail(
                EmailSettings(
                    "imap",
                    MailHost("127.0.0.1", server.port, Security.PLAIN),
                    MailHost("127.0.0.1", sink.port, Security.PLAIN),
                ),
                clock=clock,
                page=page,
                oauth=client,
            )
            lab = ProviderLab(provider, "email")
            begun = await lab.begin()
            callback = oauth.visit(begun.auth_url, "ann")
            code = parse_qs(urlsplit(callback).query)["code"][0]
            assert (await lab.complete(begun, code)).account_ref == "acct_ann@example.org"
            (found,) = (await lab.invoke("list"))["messages"]
            assert found["subject"] == "By token"
            assert lab.credential.held is not None
            token = str(lab.credential.held["access_token"])
            sink.tokens[token] = "ann@example.org"
            assert (await lab.invoke("send", to=["b@c.de"], text="x"))["accepted"] == 1
            assert sink.logins == ["ann@example.org"]
            oauth.registry.grants[-1].revoked = True
            with raises_code("capability_auth_required", CapabilityError):
                await lab.invoke("list")
            await provider.close()
