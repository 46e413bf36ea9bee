"""Accounts that stop working: seen by calls and by tests, and their owners are told."""

from __future__ import annotations

import contextlib
import imaplib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.mail_servers import Dovecot, dovecot
from whole.harness.account_servers import Api
from whole.harness.daemon import wait_for
from whole.harness.oauth import CLIENT_SECRET, OAuthServer
from whole.harness.people import Guest
from whole.harness.services import Bridge, Desk, Person, provider_toml, somebody

MAIL, ISSUES = "imap.email", "tracker.issues"
TRACKER = """\
description = "A tracker"
[operations.me]
description = "Say who it is."
path = "/me"
"""
WORDS = {f"{name}@example.org": f"{name}-pass-phrase-1" for name in ("ann", "bob", "cid")}


class Services:
    """The desk and the servers behind it."""

    def __init__(self, desk: Desk, mail: Dovecot, oauth: OAuthServer, api: Api) -> None:
        self.desk, self.mail, self.oauth, self.api = desk, mail, oauth, api

    def set_password(self, address: str, word: str) -> None:
        """Change somebody's password at the mail server."""
        self.mail.users[address] = word
        lines = [f"{name}:{{PLAIN}}{one}::::::\n" for name, one in self.mail.users.items()]
        (self.mail.base / "users").write_text("".join(lines), encoding="utf-8")
        # It looks at the file at most once a second.
        wait_for(lambda: self._takes(address, word), "the new password")

    def _takes(self, address: str, word: str) -> bool:
        imap = imaplib.IMAP4("127.0.0.1", self.mail.port)
        try:
            imap.login(address, word)
        except imaplib.IMAP4.error:
            return False
        finally:
            imap.shutdown()
        return True

    def link_mail(self, person: Person, address: str) -> None:
        flow = self.desk.ask(person, "auth.begin", capability=MAIL, account_hint="work")
        form = {"email": address, "password": self.mail.users[address]}
        page = httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)
        code = re.search(r"<code>([^<]+)</code>", page.text)
        assert code is not None, page.text
        self.desk.ask(person, "auth.complete", flow_id=flow["flow_id"], code=code[1])

    def link_issues(self, person: Person) -> None:
        flow = self.desk.ask(person, "auth.begin", capability=ISSUES, account_hint="work")
        back = self.oauth.visit(flow["auth_url"], person.user)
        self.desk.ask(person, "auth.complete", flow_id=flow["flow_id"], callback_url=back)

    def statuses(self, person: Person) -> dict[str, str]:
        """Return what the operator's command says about somebody's accounts."""
        listed = self.desk.daemon.cli("account", "list", "--user", person.user, "--json").json
        return {one["capability"]: one["status"] for one in listed}

    def check(self, person: Person) -> dict[str, tuple[str, bool]]:
        done = self.desk.daemon.cli("account", "check", "--user", person.user, "--json").json
        return {one["capability"]: (one["status"], one["checked"]) for one in done}

    def asked(self, person: Person) -> list[str]:
        """Return what waits for somebody, as the front end shows them."""
        guest = Guest(self.desk.daemon, person)
        try:
            found = guest.get("/inbox?state=pending&kind=account_relink")["items"]
        finally:
            guest.close()
        return [one["title"] for one in found]


@pytest.fixture(scope="module")
def services(desks: Callable[..., Desk], module_path: Path) -> Iterator[Services]:
    with (
        contextlib.closing(OAuthServer(module_path)) as oauth,
        dovecot(dict(WORDS)) as mail,
        contextlib.closing(Api(oauth)) as api,
    ):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            nobody = probe.getsockname()[1]
        more = provider_toml(
            "imap",
            type="imap",
            settings={"imap": f"127.0.0.1:{mail.port}", "security": "plain"},
        )
        more += provider_toml(
            "tracker",
            type="rest",
            env={"OAUTH_CLIENT_SECRET": CLIENT_SECRET},
            settings={
                "name": "issues",
                "description": "tracker.toml",
                "base_url": api.url,
                "check_path": "/me",
                "oauth": oauth.settings(),
            },
        )
        more += provider_toml(
            "lost",
            type="caldav",
            settings={"url": f"http://127.0.0.1:{nobody}/"},
        )
        desk = desks(Bridge(module_path, "post"), more=more)
        desk.daemon.write("tracker.toml", TRACKER)
        yield Services(desk.open(), mail, oauth, api)


def test_a_changed_password_is_noticed_told_to_its_owner_and_mended(services: Services) -> None:
    desk, ann, bob = services.desk, somebody(), somebody()
    services.link_mail(ann, "ann@example.org")
    services.link_mail(bob, "bob@example.org")
    assert services.check(ann) == {MAIL: ("active", True)}
    services.set_password("ann@example.org", "ann-pass-phrase-the-second")
    assert desk.code(ann, MAIL, "list") == "capability_auth_required"
    assert (services.statuses(ann), services.statuses(bob)) == (
        {MAIL: "revoked"},
        {MAIL: "active"},
    )
    assert services.asked(ann) == ["Link ann@example.org with imap.email again."]
    assert services.asked(bob) == []
    [row] = wait_for(lambda: desk.audit(ann, "capability_account_status"), "the record")
    assert (row["before"], row["status"], row["account_ref"]) == ("active", "revoked", "acct_work")
    # Her agent learns it too; nobody else's does.
    [shown] = [one for one in desk.ask(ann, "list")["capabilities"] if one["id"] == MAIL]
    assert [one["status"] for one in shown["linked_accounts"]] == ["revoked"]
    # It is kept over a restart, and ends when she links the account again.
    desk.reopen()
    assert services.statuses(ann) == {MAIL: "revoked"}
    assert services.asked(ann) == ["Link ann@example.org with imap.email again."]
    services.link_mail(ann, "ann@example.org")
    assert services.statuses(ann) == {MAIL: "active"}
    assert services.asked(ann) == []
    desk.invoke(ann, MAIL, "list")


def test_a_withdrawn_grant_is_found_by_a_test_before_it_is_needed(services: Services) -> None:
    ann, bob = somebody(), somebody()
    for person in (ann, bob):
        services.link_issues(person)
        assert services.check(person) == {ISSUES: ("active", True)}
    services.oauth.withdraw(services.oauth.secrets("refresh_token", ann.user)[-1])
    assert services.check(ann) == {ISSUES: ("revoked", True)}
    assert services.check(bob) == {ISSUES: ("active", True)}
    assert len(services.asked(ann)) == 1
    assert services.asked(bob) == []
    # The operator sees it, too, and dismissing it is an answer.
    inbox = services.desk.daemon.get("/inbox?state=pending&kind=account_relink")["items"]
    [found] = [one for one in inbox if one["owner"] == ann.user]
    body: dict[str, Any] = {"digest": found["digest"], "answer": {"choice": "yes"}}
    path = f"/inbox/{found['id']}/answer"
    assert services.desk.daemon.error("POST", path, body)["code"] == "inbox_answer_invalid"
    services.desk.daemon.post(path, {**body, "answer": {"choice": "dismiss"}})
    assert services.asked(ann) == []
    assert services.statuses(ann) == {ISSUES: "revoked"}


def test_a_person_tests_and_sees_their_own_accounts_only(services: Services) -> None:
    ann, bob = somebody(), somebody()
    services.link_mail(ann, "cid@example.org")
    services.desk.link(bob, "post.box")
    guest = Guest(services.desk.daemon, bob)
    try:
        checked = guest.post(f"/services/accounts/check?user_id={ann.user}")["accounts"]
        listed = guest.get(f"/services/accounts?user_id={ann.user}")["accounts"]
    finally:
        guest.close()
    assert [(one["user_id"], one["status"], one["checked"]) for one in checked] == [
        (bob.user, "active", False)  # a bridge has no way to test an account
    ]
    assert [one["user_id"] for one in listed] == [bob.user]


def test_a_service_that_is_not_there_is_found_by_doctor_and_by_calls(services: Services) -> None:
    desk, ann = services.desk, somebody()
    rows = {one["id"]: one for one in desk.daemon.get("/doctor")["rows"]}
    assert rows["services.lost"]["status"] == "fail"
    assert "cannot be reached" in rows["services.lost"]["cause"]
    assert [rows[f"services.{one}"]["status"] for one in ("imap", "tracker")] == ["ok", "ok"]
    services.link_issues(ann)
    services.api.close()
    assert desk.code(ann, ISSUES, "me") == "capability_backend_unavailable"
    assert services.statuses(ann) == {ISSUES: "unreachable"}
    assert services.asked(ann) == []  # linking it again would not help
    [row] = [one for one in desk.daemon.get("/doctor")["rows"] if "accounts" in one["id"]]
    assert "1 unreachable" in row["cause"]
