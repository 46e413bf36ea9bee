"""`AccountServers`: where people have accounts, the daemon before them, and all it told cages."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from fakes.mail_servers import Dovecot, SmtpSink
from whole.harness.harbour import Harbour
from whole.harness.oauth import CLIENT_SECRET, OAuthServer
from whole.harness.services import Desk, Person, result_of, step

PASSWORDS = {
    "ann@example.org": "ann-pass-phrase-1",
    "bob@example.org": "bob-pass-phrase-1",
    "ann": "ann-calendar-word-1",
    "bob": "bob-calendar-word-1",
}

_ISSUED = ("access_token", "refresh_token", "authorization_code", "code_verifier")


class Api:
    """An API that takes live tokens of the OAuth server, and repeats the one it was shown.

    Tokens in `refused` it does not take any more, whatever the server says about them.
    """

    def __init__(self, oauth: OAuthServer) -> None:
        seen = self.seen = list[tuple[str, str, str]]()
        refused = self.refused = set[str]()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                return

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length).decode()
                token = self.headers.get("authorization", "").removeprefix("Bearer ")
                user = None if not token or token in refused else oauth.whose(token)
                good = user is not None
                said: dict[str, Any] = {"message": "no"}
                if self.path == "/.well-known/oauth-protected-resource":
                    good = True
                    here = f"http://{self.headers['host']}"
                    said = {"resource": here, "authorization_servers": [oauth.url]}
                elif user is not None:
                    seen.append((user, self.path, body))
                    said = {"user": user, "body": body}
                    if self.path == "/note":
                        said = {"note": f"you came with {token}, and that is fine"}
                data = json.dumps(said).encode()
                self.send_response(200 if good else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815 - the library's names

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)


@dataclass
class AccountServers:
    """The servers, the desk in front of them, and everything that cages were told."""

    desk: Desk
    mail: Dovecot
    sink: SmtpSink
    oauth: OAuthServer
    api: Api
    harbour: Harbour
    typed: set[str] = field(default_factory=set[str])
    seen: list[str] = field(default_factory=list[str])

    def asks(self, person: Person, *steps: dict[str, Any]) -> list[Any]:
        answers = self.desk.asks(person, *steps)
        self.seen.append(json.dumps(answers))
        return answers

    def ash(self, person: Person, words: str) -> dict[str, Any]:
        done = self.desk.run(person, f"ash-sb capability {words} 2>&1; code=$?; env; exit $code")
        self.seen.append(json.dumps(done))
        return done

    def begin(self, person: Person, id_: str) -> dict[str, Any]:
        [begun] = self.asks(person, step("auth.begin", capability=id_, account_hint="work"))
        return result_of(begun)

    def complete(self, person: Person, flow: dict[str, Any], **given: str) -> str:
        done = self.asks(person, step("auth.complete", flow_id=flow["flow_id"], **given))
        return str(result_of(done[0])["account_ref"])

    def link(self, person: Person, id_: str) -> str:
        """Link an account the way people do, in a browser."""
        flow = self.begin(person, id_)
        if id_ == "post.box":
            return self.complete(person, flow, code="agreed")
        if id_ == "tracker.issues":
            return self.complete(
                person, flow, callback_url=self.oauth.visit(flow["auth_url"], person.user)
            )
        email = f"{person.user}@example.org"
        form = (
            {"email": email, "password": PASSWORDS[email]}
            if id_ == "imap.email"
            else {"username": person.user, "password": PASSWORDS[person.user]}
        )
        page = httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)
        code = re.search(r"<code>([^<]+)</code>", page.text)
        assert code is not None, page.text
        return self.complete(person, flow, code=code[1])

    def one_of_each_kind(self) -> set[str]:
        """Return the passwords, what was typed in, and the latest of each kind of token."""
        issued = {self.oauth.secrets(kind)[-1] for kind in _ISSUED}
        return {*PASSWORDS.values(), *self.typed, CLIENT_SECRET, *issued}

    def secrets(self) -> set[str]:
        """Return every credential that there has been so far."""
        for kind in _ISSUED:
            assert self.oauth.secrets(kind), kind
        return {*PASSWORDS.values(), *self.typed, CLIENT_SECRET, *self.oauth.secrets()}
