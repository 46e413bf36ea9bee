"""Mail, calendars and an API behind OAuth, linked and used by agents who never hold a credential.

Dovecot, an SMTP server, Radicale and an OpenID provider run for real, all of other people. What the
cages ever saw is kept and searched for every secret. A bridge stands beside them: both kinds obey
the same rules.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
import pytest

from encodings_of_secrets import encodings
from fakes.calendar_server import radicale
from fakes.mail_servers import deliver, dovecot, smtp_sink
from requirements.marker import whole
from whole.harness.account_servers import PASSWORDS, AccountServers, Api
from whole.harness.daemon import Daemon
from whole.harness.harbour import Harbour
from whole.harness.oauth import CLIENT_SECRET, OAuthServer
from whole.harness.services import (
    PYTHON,
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    invoking,
    operation,
    provider_toml,
    result_of,
    somebody,
    step,
)

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference" / "http-api.md"
HARBOUR_BRIDGE = ROOT / "plugins" / "examples" / "harbour-bridge" / "bridge.py"
ANN, BOB = Person("ann", "private", "c-ann"), Person("bob", "private", "c-bob")
KINDS = ("imap.email", "dav.calendar", "tracker.issues", "post.box")
FIRST = {
    "imap.email": ("list", {}),
    "dav.calendar": ("calendars", {}),
    "tracker.issues": ("me", {}),
    "post.box": ("echo", {}),
}
TRACKER = """\
description = "A tracker"
[operations.me]
description = "Say who it is."
path = "/me"
[operations.note]
description = "Return a note."
path = "/note"
[operations.add]
description = "Open an issue."
method = "POST"
path = "/issues"
body = { type = "object", properties = { title = { type = "string" } }, required = ["title"] }
"""


def letter(subject: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "zoe@example.net", "x@y.example", subject
    message.set_content("See you at the pier.")
    return message


@pytest.fixture(scope="module")
def servers(desks: Callable[..., Desk], module_path: Path) -> Iterator[AccountServers]:
    mailboxes = {name: word for name, word in PASSWORDS.items() if "@" in name}
    people = {name: word for name, word in PASSWORDS.items() if "@" not in name}
    (module_path / "dav").mkdir()
    with (
        contextlib.closing(OAuthServer(module_path)) as oauth,
        dovecot(mailboxes, userinfo=f"{oauth.url}/me") as mail,
        smtp_sink(mailboxes) as sink,
        radicale(module_path / "dav", people) as dav,
        contextlib.closing(Harbour()) as harbour,
    ):
        api = Api(oauth)
        for user in mailboxes:
            deliver(mail, user, [letter(f"For {user}")])
        for name, word in people.items():
            httpx.request(
                "MKCALENDAR", f"{dav}{name}/home/", auth=(name, word), trust_env=False, timeout=60
            )
        plain = {
            "imap": f"127.0.0.1:{mail.port}",
            "smtp": f"127.0.0.1:{sink.port}",
            "security": "plain",
            "sent_folder": "Sent",
        }
        secret = {"OAUTH_CLIENT_SECRET": CLIENT_SECRET}
        more = provider_toml("imap", type="imap", settings=plain)
        more += provider_toml("dav", type="caldav", settings={"url": dav})
        more += provider_toml(
            "login", type="imap", env=secret, settings={**plain, "oauth": oauth.settings()}
        )
        typed_elsewhere = {"device_url": f"{oauth.url}/device/auth"}
        for name, settings in (("tracker", {}), ("phone", typed_elsewhere)):
            more += provider_toml(
                name,
                type="rest",
                env=secret,
                settings={
                    "name": "issues",
                    "description": "tracker.toml",
                    "base_url": api.url,
                    "oauth": oauth.settings(**settings),
                },
            )
        box = capability("post.box", operation("echo"), sensitive=True)
        state = module_path / "harbour"
        state.mkdir(mode=0o700)
        locker = Bridge(
            module_path,
            "harbour",
            command=[*PYTHON, str(HARBOUR_BRIDGE)],
            env={"HARBOUR_URL": harbour.url, "HARBOUR_STATE": str(state)},
        )
        desk = desks(Bridge(module_path, "post", {"definitions": [box]}), locker, more=more)
        desk.daemon.write("tracker.toml", TRACKER)
        made = AccountServers(desk.open(), mail, sink, oauth, api, harbour)
        yield made
        api.close()


@whole("SC-POL-15", "SC-PROV-10", "SC-POL-02")
@pytest.mark.parametrize("id_", KINDS)
def test_private_things_are_for_private_chats_whoever_provides_them(
    servers: AccountServers, id_: str
) -> None:
    name, given = FIRST[id_]
    codes = {}
    for chat in ("private", "group", "supergroup", ""):
        person = Person(somebody().user, chat, "c" if chat else "")
        answers = servers.asks(
            person, invoking(id_, name, input=given), step("auth.begin", capability=id_)
        )
        codes[chat] = [code_of(one) if "error" in one else "ok" for one in answers]
    denied = ["capability_access_denied"] * 2
    assert codes == {
        "private": ["capability_auth_required", "ok"],
        "group": denied,
        "supergroup": denied,
        "": denied,
    }
    assert (
        code_of(servers.asks(ANN, invoking(id_.replace(".", ".x"), name))[0])
        == "capability_not_found"
    )


@whole("SC-ISO-09", "SC-PROV-10", "SC-AUTH-01", "SC-NS-07")
@pytest.mark.parametrize("id_", KINDS)
def test_each_person_links_and_uses_an_account_of_their_own(
    servers: AccountServers, id_: str
) -> None:
    name, given = FIRST[id_]
    call = invoking(id_, name, input=given)
    assert servers.link(ANN, id_).startswith("acct_")
    [anns] = servers.asks(ANN, call)
    assert "ann" in json.dumps(result_of(anns)["output"])
    [bobs] = servers.asks(BOB, call)
    assert code_of(bobs) == "capability_auth_required"
    [stolen] = servers.asks(BOB, invoking(id_, name, input=given, account_ref="acct_work"))
    assert code_of(stolen) == "capability_auth_required"
    # A flow of hers is of no use to him.
    [begun] = servers.asks(ANN, step("auth.begin", capability=id_, account_hint="more"))
    foreign = step("auth.complete", flow_id=result_of(begun)["flow_id"], code="x")
    assert code_of(servers.asks(BOB, foreign)[0]) == "capability_auth_flow_invalid"
    servers.link(BOB, id_)
    [both] = servers.asks(BOB, call)
    said = json.dumps(result_of(both)["output"])
    assert "bob" in said
    assert "ann" not in said
    assert {one["capability"] for one in servers.desk.accounts("bob")} >= {id_}


@whole("SC-AUTH-01")
def test_an_account_is_linked_by_a_code_that_a_person_types_on_another_device(
    servers: AccountServers,
) -> None:
    people = [somebody() for _ in range(3)]
    flows = [servers.begin(one, "phone.issues") for one in people]
    for flow in flows:
        assert flow["flow_type"] == "device_code"
        assert flow["user_code"] in flow["auth_url"]
    (waiting, agreeing, denying), (_, agreed, denied) = people, flows
    servers.oauth.visit(agreed["auth_url"], agreeing.user)
    servers.oauth.visit(denied["auth_url"], denying.user, agrees=False)
    polled = [
        servers.asks(one, step("auth.poll", flow_id=flow["flow_id"]))[0]
        for one, flow in zip(people, flows, strict=True)
    ]
    assert result_of(polled[0])["status"] == "pending"
    assert result_of(polled[1])["account_ref"] == "acct_work"
    assert code_of(polled[2]) == "capability_auth_flow_denied"
    used = {one: servers.asks(one, invoking("phone.issues", "me"))[0] for one in people}
    assert result_of(used[agreeing])["output"]["data"]["user"] == agreeing.user
    assert {code_of(used[one]) for one in (waiting, denying)} == {"capability_auth_required"}


@whole("SC-AUTH-01", "SC-PROV-07")
def test_a_mailbox_is_opened_with_a_token_that_the_mail_server_asks_about(
    servers: AccountServers,
) -> None:
    flow = servers.begin(BOB, "login.email")
    callback = servers.oauth.visit(flow["auth_url"], "bob")
    assert servers.complete(BOB, flow, callback_url=callback) == "acct_work"
    listing = invoking("login.email", "list", input={})
    [listed] = servers.asks(BOB, listing)
    [subject] = [one["subject"] for one in result_of(listed)["output"]["messages"]]
    assert subject == "For bob@example.org"
    token = servers.oauth.secrets("access_token", "bob")[-1]
    servers.sink.tokens[token] = "bob@example.org"
    sending = invoking("login.email", "send", input={"to": ["zoe@example.net"], "text": "x"})
    [sent] = servers.asks(BOB, sending)
    assert result_of(sent)["output"]["accepted"] == 1
    assert servers.sink.letters[-1].mail_from == "bob@example.org"
    # Taken back at the server, not here: the mail server does not take it any more.
    servers.oauth.withdraw(token)
    assert code_of(servers.asks(BOB, listing)[0]) == "capability_auth_required"


@whole("SC-AUTH-01")
def test_a_person_who_does_not_agree_has_no_account_and_may_try_again(
    servers: AccountServers,
) -> None:
    person = somebody()
    flow = servers.begin(person, "tracker.issues")
    callback = servers.oauth.visit(flow["auth_url"], person.user, agrees=False)
    assert "error=access_denied" in callback
    giving = {"flow_id": flow["flow_id"], "callback_url": callback}
    refused, used = servers.asks(
        person, step("auth.complete", **giving), invoking("tracker.issues", "me")
    )
    assert code_of(refused) == "capability_auth_flow_denied"
    assert code_of(used) == "capability_auth_required"
    assert servers.link(person, "tracker.issues") == "acct_work"


@pytest.fixture(scope="module")
def linked(servers: AccountServers) -> AccountServers:
    """Ann has everything linked by then."""
    for id_ in KINDS:
        if id_ not in {one["capability"] for one in servers.desk.accounts("ann")}:
            servers.link(ANN, id_)
    return servers


@whole("SC-SEC-07", "SC-SEC-01", "SC-SEC-04", "SC-RPC-11", "SC-PROV-07")
def test_a_mailbox_and_a_calendar_are_used_from_a_cage_that_holds_a_token_and_an_address(
    linked: AccountServers,
) -> None:
    def run(id_: str, name: str, **given: Any) -> str:
        data = json.dumps(given)
        done = linked.ash(ANN, f"invoke -c {id_} -o {name} --input-json '{data}'")
        assert done["exit_code"] == 0, done
        return str(done["stdout"])

    listed = run("imap.email", "list")
    assert "For ann@example.org" in listed
    assert "For bob@example.org" not in listed
    assert "See you at the pier." in run("imap.email", "read", uid=1)
    run("imap.email", "send", to=["zoe@example.net"], subject="Hi", text="x")
    assert linked.sink.letters[-1].mail_from == "ann@example.org"
    for name, given in (
        ("folders", {}),
        ("search", {"subject": "For"}),
        ("draft", {"text": "later"}),
        ("move", {"uids": [1], "to_folder": "Drafts"}),
    ):
        run("imap.email", name, **given)
    times = {"start": "2026-03-03T09:00:00Z", "end": "2026-03-03T10:00:00Z"}
    run("dav.calendar", "create", calendar="/ann/home/", title="Dentist", **times)
    whole_month = {"start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z"}
    assert "Dentist" in run("dav.calendar", "search", text="dentist", **whole_month)
    run("tracker.issues", "add", body={"title": "Leaks"})
    assert linked.api.seen[-1][:2] == ("ann", "/issues")
    names = {
        line.partition("=")[0]
        for line in run("imap.email", "list").splitlines()
        if re.match(r"[A-Z_]+=", line)
    }
    ordinary = {
        *("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "USER", "LOGNAME", "TERM", "PWD"),
        *("NO_COLOR", "PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "DEBIAN_FRONTEND"),
        *("SHLVL", "_", "OLDPWD"),
    }
    assert names - ordinary == {"ASH_CONTEXT_TOKEN", "ASH_RPC_HOST", "ASH_RPC_PORT"}
    linked.ash(ANN, "list")
    said = "\n".join(linked.seen)
    for secret in linked.secrets():
        assert secret not in said


@whole("SC-SEC-04")
def test_a_token_that_the_service_repeats_does_not_get_out_old_or_renewed(
    linked: AccountServers,
) -> None:
    """The second time the token has ended early: it is renewed within the call that repeats it."""
    [repeated] = linked.asks(ANN, invoking("tracker.issues", "note"))
    assert code_of(repeated) == "capability_invalid_output"
    answers, tokens = [repeated], list(linked.oauth.secrets("access_token", "ann"))
    for _ in range(2):  # the second renewal needs the refresh token that came with the first
        linked.api.refused.update(tokens)
        before = len(linked.api.seen)
        [renewed] = linked.asks(ANN, invoking("tracker.issues", "note"))
        known = linked.oauth.secrets("access_token", "ann")
        assert len(known) == len(tokens) + 1
        assert len(linked.api.seen) == before + 1  # it did answer, with the new one in its words
        assert code_of(renewed) == "capability_invalid_output"
        tokens = list(known)
        answers.append(renewed)
    said = json.dumps(answers)
    for token in (*tokens, *linked.oauth.secrets("refresh_token", "ann")):
        assert token not in said
    [fine] = linked.asks(ANN, invoking("tracker.issues", "me"))
    assert result_of(fine)["output"]["data"]["user"] == "ann"


@whole("SC-SEC-04")
def test_what_is_typed_into_a_page_does_not_get_out_right_or_wrong(linked: AccountServers) -> None:
    """A mistyped password is a secret as well: it is nearly the right one."""
    wrong = {
        "imap.email": {"email": "bob@example.org", "password": "bob-pass-phrase-2 wrong"},
        "dav.calendar": {"username": "bob", "password": "bob-calendar-word-2 wrong"},
        "harbour.locker": {"berth": "west", "pass": "no such locker token 0815"},
    }
    right = linked.harbour.personal("bob")
    linked.typed |= {right}
    for id_, form in wrong.items():
        flow = linked.begin(BOB, id_)
        linked.typed.add([*form.values()][-1])
        page = httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)
        assert page.status_code == 401, page.text
        linked.seen.append(page.text)
        given = {"flow_id": flow["flow_id"], "code": [*form.values()][-1]}
        linked.asks(BOB, step("auth.complete", **given))  # into the chat, by mistake
    flow = linked.begin(BOB, "harbour.locker")
    page = httpx.post(
        flow["auth_url"], data={"berth": "", "pass": right}, trust_env=False, timeout=60
    )
    code = re.search(r"<code>([^<]+)</code>", page.text)
    assert code is not None, page.text
    linked.seen.append(page.text.replace(code[1], ""))
    assert linked.complete(BOB, flow, code=code[1]) == "acct_bob"
    listing = invoking("harbour.locker", "list", input={})
    assert "bob moors" in json.dumps(result_of(linked.asks(BOB, listing)[0]))
    linked.harbour.denied.add("bob")
    assert code_of(linked.asks(BOB, listing)[0]) == "capability_access_denied"
    linked.harbour.expire("bob")
    assert code_of(linked.asks(BOB, listing)[0]) == "capability_auth_required"


@whole("SC-SEC-03", "SC-AUD-02")
def test_no_answer_of_the_http_api_no_audit_row_and_no_file_holds_a_credential(
    linked: AccountServers,
) -> None:
    desk = linked.desk
    text = REFERENCE.read_text(encoding="utf-8")
    routes = re.findall(r"`GET (/[^`{ ]+)`", text)
    assert "/api/v1/services/accounts" in routes
    said: list[str] = []
    for route in routes:
        if "launch" in route:
            continue
        for client, headers in ((desk.daemon.client, {}), (desk.front_end, ANN.headers)):
            got = client.get(route, headers=headers)
            said.append(got.text)
    exported = desk.daemon.cli("account", "list", "--json").out
    assert "acct_work" in exported
    tokens = re.findall(r"ASH_CONTEXT_TOKEN=([\w.-]+)", "\n".join(linked.seen))
    assert tokens
    rows = json.dumps(desk.daemon.audit())
    # The operator's own config names the client's secret; it is the one file that does.
    config = desk.daemon.home / "config.toml"
    files = [one for one in desk.daemon.home.rglob("*") if one.is_file() and one != config]
    stored = "\n".join(one.read_bytes().decode("utf-8", "replace") for one in files)
    log = desk.daemon.log()
    everything = "\n".join((*said, *linked.seen, exported, rows, log, stored))
    everything = everything.replace("\\\\", "\\")
    assert [one[:6] for one in linked.secrets() if one in everything] == []
    leaks = [
        (secret[:6], name)
        for secret in linked.one_of_each_kind()
        for name, written in encodings(secret).items()
        if written in everything
    ]
    assert leaks == []
    for token in tokens:
        assert token.rpartition(".")[2] not in rows + log
    Daemon.spoken += 1


@whole("SC-AUTH-01")
def test_an_account_that_is_taken_back_is_taken_back_everywhere(linked: AccountServers) -> None:
    desk = linked.desk
    token = linked.oauth.secrets("access_token", "ann")[-1]
    assert linked.oauth.whose(token) == "ann"
    done = linked.asks(
        ANN,
        step("auth.revoke", capability="tracker.issues", account_ref="acct_work"),
        invoking("tracker.issues", "me"),
    )
    assert result_of(done[0])["provider_revoked"] is True
    assert linked.oauth.whose(token) is None  # the server says so itself
    assert code_of(done[1]) == "capability_auth_required"
    assert "tracker.issues" not in {one["capability"] for one in desk.accounts("ann")}
