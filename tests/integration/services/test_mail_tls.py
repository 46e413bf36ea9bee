"""The line to a mail server: whoever cannot show whose server it is gets no password."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.provider_lab import ProviderLab
from fakes.tls_mail import (
    LONG_AGO,
    Line,
    MailServer,
    Signed,
    Speaks,
    make_ca,
    make_certificate,
)
from kaged.base import JsonObject, ManualClock
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.services.providers.imap_email import EmailSettings, ImapEmail
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.mailbox import Login, Mailbox, MailHost, Security

SECRET = "correct horse battery"
LOGIN = Login("ann", SECRET)
TIMEOUT_S = 20.0
PLACES: list[tuple[Speaks, Line]] = [
    ("imap", "tls"), ("imap", "starttls"), ("smtp", "tls"), ("smtp", "starttls"),
]  # fmt: skip


def _use(speaks: Speaks, host: MailHost, clock: ManualClock) -> None:
    """Log in, and with SMTP send a letter."""
    if speaks == "imap":
        with Mailbox(host, LOGIN, TIMEOUT_S):
            return
    settings = EmailSettings("post", imap=host, smtp=host, timeout_s=TIMEOUT_S)
    asyncio.run(_send(ImapEmail(settings, clock=clock, page=LinkPage(clock))))


async def _send(provider: ImapEmail) -> None:
    lab = ProviderLab(provider, "email")
    held: JsonObject = {"username": "ann", "password": SECRET, "account_email": "ann@a.test"}
    lab.credential.held = held
    try:
        await lab.invoke("send", to=["bob@b.test"], subject="boat", text="At nine.")
    finally:
        await provider.close()


def _host(server: MailServer, ca: Signed, folder: Path, name: str = "localhost") -> MailHost:
    security = Security.TLS if server.line == "tls" else Security.STARTTLS
    return MailHost(name, server.port, security, str(ca.save(folder, "ca")))


@pytest.mark.parametrize(("speaks", "line"), PLACES)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_server_with_a_good_certificate_gets_the_login_and_only_hidden(
    tmp_path: Path, clock: ManualClock, speaks: Speaks, line: Line, name: str
) -> None:
    ca = make_ca("ours")
    pem = make_certificate(ca, name).save(tmp_path, "server")
    with MailServer(speaks, line, pem) as server:
        _use(speaks, _host(server, ca, tmp_path, name), clock)
    assert b"AUTH" in server.hidden.upper()
    assert b"AUTH" not in server.plain.upper()


BAD: dict[str, Callable[[Signed], Signed]] = {
    "another host's": lambda ca: make_certificate(ca, "mail.elsewhere.test"),
    "another address's": lambda ca: make_certificate(ca, "127.0.0.2"),
    "expired": lambda ca: make_certificate(ca, until=LONG_AGO),
    "self-signed": lambda _: make_certificate(None),
    "of another authority": lambda _: make_certificate(make_ca("ours")),
}


@pytest.mark.parametrize(("speaks", "line"), PLACES)
@pytest.mark.parametrize("bad", BAD)
def test_a_server_with_a_bad_certificate_gets_nothing(
    tmp_path: Path, clock: ManualClock, speaks: Speaks, line: Line, bad: str
) -> None:
    ca = make_ca("ours")
    pem = BAD[bad](ca).save(tmp_path, "server")
    with (
        MailServer(speaks, line, pem) as server,
        pytest.raises(CapabilityBackendUnavailable) as refused,
    ):
        _use(speaks, _host(server, ca, tmp_path), clock)
    assert not server.hidden
    assert b"AUTH" not in server.plain.upper()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("speaks", ["imap", "smtp"])
@pytest.mark.parametrize("line", ["stripped", "refused"])
def test_a_line_from_which_starttls_was_stripped_is_not_used(
    tmp_path: Path, clock: ManualClock, speaks: Speaks, line: Line
) -> None:
    """Somebody between us and the server takes the offer out of its words, or says no for it."""
    ca = make_ca("ours")
    pem = make_certificate(ca).save(tmp_path, "server")
    with MailServer(speaks, line, pem) as server, pytest.raises(CapabilityBackendUnavailable):
        _use(speaks, _host(server, ca, tmp_path), clock)
    assert server.plain  # it was asked
    assert b"AUTH" not in server.plain.upper()


@pytest.mark.parametrize("speaks", ["imap", "smtp"])
def test_a_server_that_speaks_in_the_clear_is_no_tls_server(
    tmp_path: Path, clock: ManualClock, speaks: Speaks
) -> None:
    ca = make_ca("ours")
    pem = make_certificate(ca).save(tmp_path, "server")
    with MailServer(speaks, "stripped", pem) as server:
        host = MailHost("localhost", server.port, Security.TLS, str(ca.save(tmp_path, "ca")))
        with pytest.raises(CapabilityBackendUnavailable):
            _use(speaks, host, clock)
    assert b"AUTH" not in server.plain.upper()
