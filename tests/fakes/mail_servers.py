"""A private Dovecot with a few mailboxes, and an SMTP server that keeps what it is given."""

from __future__ import annotations

import base64
import contextlib
import grp
import imaplib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

DOVECOT = shutil.which("dovecot", path="/usr/sbin:/usr/bin:/usr/local/sbin")
START_S = 30.0

_CONFIG = """\
base_dir = {base}/run
state_dir = {base}/state
log_path = {base}/dovecot.log
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain login{oauth_mechanism}
auth_failure_delay = 0
mail_location = maildir:{base}/mail/%u
default_internal_user = {user}
default_login_user = {user}
default_internal_group = {group}
first_valid_uid = 0
passdb {{
  driver = passwd-file
  args = scheme=PLAIN username_format=%u {base}/users
}}
{oauth_passdb}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={base}/mail/%u
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Drafts {{
    auto = create
  }}
  mailbox Sent {{
    auto = create
  }}
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
  chroot =
}}
service anvil {{
  chroot =
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service stats {{
  chroot =
}}
"""

_OAUTH = """\
passdb {{
  driver = oauth2
  mechanisms = xoauth2
  args = {base}/oauth2.conf
}}
"""


@dataclass(frozen=True, slots=True)
class Dovecot:
    """A running server; `users` maps names to passwords."""

    port: int
    base: Path
    users: dict[str, str]


@contextlib.contextmanager
def dovecot(
    users: dict[str, str], tokeninfo: str | None = None, userinfo: str | None = None
) -> Generator[Dovecot]:
    """Run Dovecot with its own configuration, users and mail, in a folder that is gone afterwards.

    With `tokeninfo` it takes OAuth tokens too, and asks that address whose they are, with the token
    at its end; with `userinfo` it shows the token as its bearer does.

    The folder's name is short because of its sockets, and open because it runs as somebody else.
    """
    if DOVECOT is None:
        if os.environ.get("KAGED_FULL_RUN"):
            pytest.fail("dovecot is missing; scripts/setup --tests installs it")
        pytest.skip("dovecot is not installed (scripts/setup --tests)")
    base = Path(tempfile.mkdtemp(prefix="kaged-dovecot-"))
    base.chmod(0o755)
    try:
        asks = None
        if tokeninfo is not None:
            asks = f"tokeninfo_url = {tokeninfo}\n"
        elif userinfo is not None:
            asks = f"introspection_url = {userinfo}\nintrospection_mode = auth\n"
        with _running(DOVECOT, base, users, asks) as server:
            yield server
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def _running(
    program: str, base: Path, users: dict[str, str], asks: str | None
) -> Generator[Dovecot]:
    for name in ("run", "state", "mail"):
        (base / name).mkdir(mode=0o755, parents=True)
    lines = [f"{name}:{{PLAIN}}{password}::::::\n" for name, password in users.items()]
    (base / "users").write_text("".join(lines), encoding="utf-8")
    root = os.getuid() == 0
    person = pwd.getpwnam("nobody") if root else pwd.getpwuid(os.getuid())
    if root:
        for path in (base / "mail", base / "users"):
            os.chown(path, person.pw_uid, person.pw_gid)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    config = base / "dovecot.conf"
    config.write_text(
        _CONFIG.format(
            base=base,
            port=port,
            user=person.pw_name,
            group=grp.getgrgid(person.pw_gid).gr_name,
            uid=person.pw_uid,
            gid=person.pw_gid,
            oauth_mechanism=" xoauth2" if asks else "",
            oauth_passdb=_OAUTH.format(base=base) if asks else "",
        ),
        encoding="utf-8",
    )
    (base / "oauth2.conf").write_text(f"{asks or ''}username_attribute = email\n", encoding="utf-8")
    process = subprocess.Popen(
        [program, "-F", "-c", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _await_port(process, port, base / "dovecot.log")
        yield Dovecot(port, base, users)
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends_s = time.monotonic() + START_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=START_S) as line:
                if line.recv(16):
                    return
        except OSError:
            if process.poll() is not None or time.monotonic() > ends_s:
                said = log.read_text(encoding="utf-8") if log.exists() else ""
                pytest.fail(f"dovecot did not start: {said}")
            time.sleep(0.05)


def deliver(server: Dovecot, user: str, messages: Iterable[EmailMessage | bytes]) -> None:
    """Put messages into somebody's inbox, as the server's own LDA would."""
    imap = imaplib.IMAP4("127.0.0.1", server.port, timeout=START_S)
    try:
        imap.login(user, server.users[user])
        for message in messages:
            raw = message if isinstance(message, bytes) else message.as_bytes()
            kind, _ = imap.append("INBOX", "", "", raw)
            assert kind == "OK"
    finally:
        imap.logout()


@dataclass  # without slots: aiosmtpd looks at every attribute, and 3.11.2 breaks on __weakref__
class SmtpSink:
    """An SMTP server that wants a login and keeps what was sent."""

    users: dict[str, str]
    port: int = 0
    letters: list[Any] = field(default_factory=list[Any])
    logins: list[str] = field(default_factory=list[str])
    refuse: frozenset[str] = frozenset()
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    async def auth_XOAUTH2(self, server: Any, args: list[str]) -> Any:  # noqa: N802 - aiosmtpd's name
        """Take `user=…^Aauth=Bearer …^A^A` for the tokens a test has put here."""
        from aiosmtpd.smtp import AuthResult

        said = base64.b64decode(args[1]).decode() if len(args) > 1 else ""
        user, _, rest = said.removeprefix("user=").partition("\x01auth=Bearer ")
        good = self.tokens.get(rest.strip("\x01")) == user
        if good:
            self.logins.append(user)
        return AuthResult(success=good, handled=False, auth_data=user.encode())

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: Any, session: Any, envelope: Any, to: str, _: Any
    ) -> str:
        if not session.authenticated:
            return "530 log in first"
        if to in self.refuse:
            return "550 nobody here"
        envelope.rcpt_tos.append(to)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - aiosmtpd's name
        self, _server: Any, _session: Any, envelope: Any
    ) -> str:
        self.letters.append(envelope)
        return "250 OK"

    def authenticate(
        self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any
    ) -> Any:
        from aiosmtpd.smtp import AuthResult

        user, password = data.login.decode(), data.password.decode()
        good = self.users.get(user) == password
        if good:
            self.logins.append(user)
        return AuthResult(success=good, handled=False)


@contextlib.contextmanager
def smtp_sink(users: dict[str, str]) -> Generator[SmtpSink]:
    """Run an SMTP server on loopback."""
    from aiosmtpd.controller import Controller

    sink = SmtpSink(users)
    with socket.create_server(("127.0.0.1", 0)) as free:
        sink.port = free.getsockname()[1]
    controller = Controller(
        sink,
        hostname="127.0.0.1",
        port=sink.port,
        authenticator=sink.authenticate,
        auth_require_tls=False,
        ready_timeout=START_S,
    )
    controller.start()
    try:
        yield sink
    finally:
        controller.stop()
