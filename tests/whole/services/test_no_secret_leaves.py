"""Services and bridges that repeat every secret they know, in 46 encodings: none gets out.

An API quotes the token it was shown, which was renewed within the call; userinfo names the person
after the token; a token that came by a code on another device, and that flow's own code; mail and
calendar servers quote passwords, right and wrong; a bridge quotes its key and the operator's
password; a sidecar what was typed in for it. People come in with invitations. Then every answer,
every log, the audit rows and every file of the home are searched for all of them in all encodings.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from encodings_of_secrets import encodings
from fakes.oauth_server import CLIENT_ID, CLIENT_SECRET, OAuthLab, oauth_server
from fakes.quoting_accounts import REFUSING, Repeated, quoting_calendar, quoting_mail
from requirements.marker import whole
from whole.harness.people import Guest
from whole.harness.services import (
    GUESTS,
    PYTHON,
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    error_of,
    invoking,
    provider_toml,
    result_of,
    step,
)

ANN = Person("ann", "private", "c-ann")
NAMES = list(encodings("any secret"))
API_TOKEN = "api/tok+n-9f8e7d6c5b4a3928_QWERTY"
SIDECAR_PIN = "p1n of the shadow/box + 4711"
WRONG_PIN = "wrong p1n of the shadow/box 0815"
SIDECAR_PASSWORD = "sidecar <pass> word 2342 & more"
MAIL_PASSWORD, WRONG_MAIL = "m4il/pass <word> & more+", "wr0ng m4il/pass <word> & more"
DAV_PASSWORD, WRONG_DAV = "d4v?pass \\ word; 1138, too", "wr0ng d4v?pass word; 1138"
BRIDGE_PASSWORD = 'bridge "pass" word & more 0815'
DESCRIPTION = """\
description = "A service that repeats"
[operations.quote]
description = "Repeat the token."
path = "/quote"
parameters.as = { in = "query", type = "string" }
parameters.status = { in = "query", type = "string" }
[operations.me]
description = "Say hello."
path = "/me"
"""


class QuotingApi:
    """An API that repeats the token that it was shown, in the encoding that it is asked for."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.person = "plain"
        self.refusing = "plain"
        self.device_codes: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                return

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                given = {name: values[0] for name, values in parse_qs(asked.query).items()}
                token = self.headers.get("authorization", "").removeprefix("Bearer ")
                said: dict[str, Any] = {"hello": "you"}
                if asked.path == "/userinfo" and api.person:
                    said = {"name": encodings(token)[api.person], "email": "ann@example.org"}
                    api.shown.append((token, api.person))
                if asked.path == "/quote":
                    said = {"message": f"your token is {encodings(token)[given['as']]} ."}
                    api.shown.append((token, given["as"]))
                self.answer(int(given.get("status", "200")), said)

            def do_POST(self) -> None:
                """Refuse a code of a device, in words that hold it."""
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                api.device_codes.append(form["device_code"][0])
                told = encodings(api.device_codes[-1])[api.refusing]
                self.answer(400, {"error": "access_denied", "error_description": f"{told} ."})

            def answer(self, status: int, said: dict[str, Any]) -> None:
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

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
class Scene:
    """The services, the desk in front of them, and everything that was answered."""

    desk: Desk
    oauth: OAuthLab
    api: QuotingApi
    mail: Repeated
    dav: Repeated
    key_file: Path
    keys: Path
    planted: set[str] = field(default_factory=set[str])
    said: list[str] = field(default_factory=list[str])

    def asks(self, *steps: dict[str, Any]) -> list[Any]:
        answers = self.desk.asks(ANN, *steps)
        self.said.append(json.dumps(answers, ensure_ascii=False))
        return answers

    def hears(self, got: httpx.Response, *, status: int = 200) -> httpx.Response:
        """Keep an answer that must hold no secret."""
        assert got.status_code == status, got.text
        self.said.append(f"{got.text}{dict(got.headers)}")
        return got

    def begin(self, id_: str) -> dict[str, Any]:
        return result_of(self.asks(step("auth.begin", capability=id_))[0])

    def agree(self) -> Any:
        """Link the OAuth account; returns the answer to the last step."""
        flow = self.begin("tracker.issues")
        back = self.oauth.visit(flow["auth_url"], "ann")
        done = step("auth.complete", flow_id=flow["flow_id"], callback_url=back)
        return self.asks(done)[0]

    def type_password(self, page: dict[str, Any], word: str, *, wrong: str) -> None:
        """Link an account by its page, at the second try."""
        form = {"email": "ann@example.org", "username": "ann", "password": wrong}
        refused = httpx.post(page["auth_url"], data=form, trust_env=False, timeout=60)
        self.hears(refused, status=401)
        form["password"] = word
        done = httpx.post(page["auth_url"], data=form, trust_env=False, timeout=60)
        [code] = re.findall(r"<code>([^<]+)</code>", self.hears(done).text)
        result_of(self.asks(step("auth.complete", flow_id=page["flow_id"], code=code))[0])

    def type_token(self, word: str, page: dict[str, Any]) -> str:
        got = httpx.post(
            page["auth_url"], data={"email": "ann", "password": word}, trust_env=False, timeout=60
        )
        self.said.append(got.text)
        found = re.search(r"<code>([^<]+)</code>", got.text)
        assert found is not None, got.text
        return found[1]


@pytest.fixture(scope="module")
def scene(desks: Callable[..., Desk], module_path: Path) -> Iterator[Scene]:
    key_file, keys = module_path / "key", module_path / "keys"
    keys.mkdir()
    with (
        oauth_server() as oauth,
        quoting_mail(MAIL_PASSWORD) as mail,
        quoting_calendar(DAV_PASSWORD) as dav,
    ):
        api = QuotingApi()
        oauth.registry.expires_in = 1  # every call renews its token first
        common = {"name": "issues", "description": "api.toml", "base_url": api.url}
        at_device = {"device_url": f"{oauth.url}/device", "token_url": f"{oauth.url}/token"}
        endpoints = {
            "tracker": {
                "authorization_url": f"{oauth.url}/authorize",
                "token_url": f"{oauth.url}/token",
                "userinfo_url": f"{api.url}/userinfo",
            },
            "phone": at_device,
            "refused": {**at_device, "token_url": f"{api.url}/token"},
        }
        more = provider_toml("keyed", type="rest", settings={**common, "auth": "token"})
        for name, urls in endpoints.items():
            more += provider_toml(
                name,
                type="rest",
                env={"OAUTH_CLIENT_SECRET": CLIENT_SECRET},
                settings={
                    **common,
                    "oauth": {"client_id": CLIENT_ID, "scopes": ["issues"], **urls},
                },
            )
        more += provider_toml("mail", type="imap", settings={"imap": mail.url, "security": "plain"})
        more += provider_toml("dav", type="caldav", settings={"url": dav.url})
        bridge = Bridge(
            module_path,
            "quotes",
            {"definitions": [capability("quotes.box")]},
            program="bridge_quotes.py",
            env={"KEY_FILE": str(key_file), "BRIDGE_PASSWORD": BRIDGE_PASSWORD},
        )
        shadow = Bridge(
            module_path,
            "shadow",
            type="sidecar",
            command=[*PYTHON, str(GUESTS / "sidecar_quotes.py")],
            env={"KEYS": str(keys), "SIDECAR_PASSWORD": SIDECAR_PASSWORD},
        )
        more += '[teams.crew]\nleads = ["ann"]\nprojects = ["any"]\n'
        desk = desks(bridge, shadow, more=more)
        desk.daemon.write("api.toml", DESCRIPTION)
        yield Scene(desk.open(), oauth, api, mail, dav, key_file, keys)
        api.close()


@whole("SC-AMB-23", "SC-SEC-04")
@pytest.mark.parametrize("name", ["plain", "upper", "base64 at 1", "percent third", "html even"])
def test_an_account_is_not_named_after_its_token(scene: Scene, name: str) -> None:
    scene.api.person = name
    before = len(scene.api.shown)
    assert code_of(scene.agree()) == "capability_invalid_output"
    assert len(scene.api.shown) == before + 1  # userinfo did say so
    assert scene.desk.accounts("ann") == []


def quoting(id_: str, name: str, status: int) -> dict[str, Any]:
    return invoking(id_, "quote", input={"as": name, "status": str(status)})


@pytest.fixture(scope="module")
def linked(scene: Scene) -> Scene:
    """Ann has linked all accounts; with a wrong code or password before the right one."""
    scene.api.person = ""
    result_of(scene.agree())
    flow = scene.begin("phone.issues")
    polling = step("auth.poll", flow_id=flow["flow_id"])
    scene.oauth.agree(flow["user_code"], "ann")
    result_of(scene.asks(polling)[0])
    scene.type_password(scene.begin("mail.email"), MAIL_PASSWORD, wrong=WRONG_MAIL)
    scene.type_password(scene.begin("dav.calendar"), DAV_PASSWORD, wrong=WRONG_DAV)
    page = scene.begin("keyed.issues")
    wrong = step("auth.complete", flow_id=page["flow_id"], code=API_TOKEN)
    assert code_of(scene.asks(wrong)[0]) == "capability_auth_flow_invalid"
    code = scene.type_token(API_TOKEN, page)
    result_of(scene.asks(step("auth.complete", flow_id=page["flow_id"], code=code))[0])
    page = scene.begin("shadow.box")
    wrong_pin = httpx.post(page["auth_url"], data={"pin": WRONG_PIN}, trust_env=False, timeout=60)
    scene.hears(wrong_pin, status=401)
    right_pin = httpx.post(page["auth_url"], data={"pin": SIDECAR_PIN}, trust_env=False, timeout=60)
    [code] = re.findall(r"<code>([^<]+)</code>", scene.hears(right_pin).text)
    result_of(scene.asks(step("auth.complete", flow_id=page["flow_id"], code=code))[0])
    return scene


@whole("SC-SEC-04", "SC-SEC-08")
@pytest.mark.parametrize("id_", ["tracker.issues", "phone.issues", "keyed.issues"])
def test_a_service_that_repeats_its_token_is_not_heard(linked: Scene, id_: str) -> None:
    """With OAuth the token was renewed within the very call."""
    steps = [quoting(id_, name, status) for name in NAMES for status in (200, 400, 500)]
    before = len(linked.api.shown)
    answers = linked.asks(*steps)
    assert len(linked.api.shown) == before + len(steps)
    for given, answer, (token, name) in zip(steps, answers, linked.api.shown[before:], strict=True):
        code = code_of(answer)
        wanted = {"200": "capability_invalid_output", "400": "capability_invalid_input"}
        assert code == wanted.get(given["params"]["input"]["status"], code), name
        assert encodings(token)[name] not in error_of(answer)["message"], name
    if id_ != "keyed.issues":
        assert len({token for token, _ in linked.api.shown[before:]}) == len(steps)
    [fine] = linked.asks(invoking(id_, "me"))
    assert result_of(fine)["output"]["data"] == {"hello": "you"}


@whole("SC-SEC-04", "SC-SEC-08")
def test_a_server_that_refuses_with_the_code_of_a_device_is_not_heard(linked: Scene) -> None:
    """Whoever has that code gets the token once the person agrees."""
    for name in NAMES[::5]:
        linked.api.refusing = name
        flow = linked.begin("refused.issues")
        answer = linked.asks(step("auth.poll", flow_id=flow["flow_id"]))[0]
        assert code_of(answer) == "capability_auth_flow_denied", answer
        said = json.dumps(answer, ensure_ascii=False)
        assert encodings(linked.api.device_codes[-1])[name] not in said
    assert len(set(linked.api.device_codes)) == len(NAMES[::5])


@whole("SC-SEC-04", "SC-SEC-08")
@pytest.mark.parametrize("id_", ["mail.email", "dav.calendar"])
def test_a_mail_or_calendar_server_that_repeats_a_password_is_not_heard(
    linked: Scene, id_: str
) -> None:
    window = {"start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z"}

    def opening(name: str) -> dict[str, Any]:
        if id_ == "mail.email":
            return invoking(id_, "read", input={"folder": name, "uid": 1})
        return invoking(id_, "list", input={"calendar": f"/{quote(name)}/", **window})

    server = linked.mail if id_ == "mail.email" else linked.dav
    word = MAIL_PASSWORD if id_ == "mail.email" else DAV_PASSWORD
    before = len(server.shown)
    answers = linked.asks(*map(opening, NAMES), *(opening(f"{REFUSING}{one}") for one in NAMES))
    assert server.shown[before:] == [(word, name) for name in [*NAMES, *NAMES]]
    for answer in answers[: len(NAMES)]:
        assert code_of(answer) == "capability_invalid_output"
    for name, answer in zip(NAMES, answers[len(NAMES) :], strict=True):
        assert code_of(answer) in {"capability_invalid_input", "capability_backend_unavailable"}
        assert encodings(word)[name] not in json.dumps(answer, ensure_ascii=False)


@whole("SC-SEC-04", "SC-SEC-08")
@pytest.mark.parametrize("variable", ["ASH_CONTEXT_TOKEN_SECRET", "BRIDGE_PASSWORD"])
def test_a_bridge_that_repeats_its_key_or_its_password_is_not_heard(
    linked: Scene, variable: str
) -> None:
    places = {
        "output": "capability_invalid_output",
        "key": "capability_invalid_output",
        "message": "capability_invalid_input",
        "code": "capability_backend_unavailable",
        "stderr": None,
    }
    # Each call is a process; what else there is of encodings, the services above have quoted.
    for at, (where, wanted) in enumerate(places.items()):
        names = ["plain", *NAMES[1 + at :: 7]]
        given = [{"where": where, "as": name, "variable": variable} for name in names]
        answers = linked.asks(*(invoking("quotes.box", "quote", input=one) for one in given))
        for one, answer in zip(given, answers, strict=True):
            if wanted is None:
                assert result_of(answer)["output"] == {}
            else:
                assert code_of(answer) == wanted, one
            secret = {
                "ASH_CONTEXT_TOKEN_SECRET": linked.key_file.read_text(encoding="utf-8"),
                "BRIDGE_PASSWORD": BRIDGE_PASSWORD,
            }[variable]
            assert encodings(secret)[one["as"]] not in json.dumps(answer, ensure_ascii=False)


@whole("SC-SEC-04", "SC-SEC-08")
@pytest.mark.parametrize("what", ["typed", "ASH_CONTEXT_TOKEN_SECRET", "SIDECAR_PASSWORD"])
def test_a_sidecar_that_repeats_what_it_knows_is_not_heard(linked: Scene, what: str) -> None:
    places = {
        "output": "capability_invalid_output",
        "key": "capability_invalid_output",
        "message": "capability_invalid_input",
        "stderr": None,
    }
    secrets = {"typed": SIDECAR_PIN, "SIDECAR_PASSWORD": SIDECAR_PASSWORD}
    for at, (where, wanted) in enumerate(places.items()):
        given = [{"what": what, "where": where, "as": name} for name in ["plain", *NAMES[at::4]]]
        answers = linked.asks(*(invoking("shadow.box", "quote", input=one) for one in given))
        for one, answer in zip(given, answers, strict=True):
            if wanted is None:
                assert result_of(answer)["output"] == {}
            else:
                assert code_of(answer) == wanted, one
            for key in [secrets.get(what)] if what in secrets else texts_in(linked.keys):
                assert encodings(key or "")[one["as"]] not in json.dumps(answer, ensure_ascii=False)
    assert texts_in(linked.keys)


def texts_in(folder: Path) -> list[str]:
    return [one.read_text(encoding="utf-8") for one in folder.iterdir()]


def test_people_come_in_with_invitations(linked: Scene) -> None:
    """What lets them in is shown once to whoever invites, and to whoever accepts."""
    daemon = linked.desk.daemon
    base = daemon.url.rstrip("/") + "/api/v1/auth"
    with (
        contextlib.closing(Guest(daemon, ANN)) as ann,
        httpx.Client(trust_env=False, timeout=60) as browser,
    ):
        made = [json.loads(daemon.cli("people", "invite", "bob", "--json").out) for _ in range(3)]
        made.append(ann.post("/people/invitations", {"person_id": "dora", "team": "crew"}))
        near = made[0]["code"][:-5] + "WRONG"
        linked.planted |= {one["code"] for one in made} | {near}
        accepted, revoked, _, dora = made
        token = httpx.post(
            f"{base}/invitation/token", data={"code": accepted["code"]}, trust_env=False, timeout=60
        ).json()["token"]
        form = {"code": dora["code"]}
        assert browser.get(dora["url"], timeout=60).status_code == 200  # a code in an address
        linked.hears(
            browser.post(f"{base}/invitation/token", data={"code": near}, timeout=60), status=403
        )
        came = browser.post(f"{base}/invitation", data=form, timeout=60)
        assert came.status_code == 303, came.text
        linked.planted |= {token, browser.cookies["kaged_session"]}
        linked.hears(browser.get(f"{base}/whoami", timeout=60))
        linked.hears(browser.get(dora["url"], timeout=60), status=403)  # it is used up
        linked.said.append(json.dumps(ann.get("/people/invitations")))
        daemon.cli("people", "revoke", revoked["id"])
        linked.hears(browser.get(revoked["url"], timeout=60), status=403)
        for shown, status in ((token, 200), (token[:-5] + "WRONG", 401), (near, 401)):
            bearer = {"Authorization": f"Bearer {shown}"}
            got = httpx.get(f"{base}/whoami", headers=bearer, trust_env=False, timeout=60)
            linked.hears(got, status=status)
        linked.said.append(daemon.cli("people", "list", "--json").out)


@whole("SC-SEC-03", "SC-AUD-02", "SC-AMB-41")
def test_no_answer_no_log_and_no_file_holds_a_secret_in_any_encoding(linked: Scene) -> None:
    desk = linked.desk
    desk.stop()
    desk.open()
    linked.asks(invoking("tracker.issues", "me"), step("auth.list"), step("list"))
    linked.asks(step("auth.revoke", capability="keyed.issues", account_ref="acct_default"))
    for words in (("account", "list", "--json"), ("doctor", "--json")):
        linked.said.append(desk.daemon.cli(*words, code=None).out)
    for path in ("/services/providers", "/services/accounts", "/services/approvals"):
        linked.said.append(json.dumps(desk.daemon.get(path)))
    linked.said.append(json.dumps(desk.daemon.audit()))
    linked.said.append(desk.daemon.log())
    desk.stop()
    own = desk.daemon.home / "config.toml"  # the operator's words, the client secret among them
    # Programs that the harness links into each home are no file of the daemon's.
    files = [one for one in desk.daemon.home.rglob("*") if one.is_file() and one != own]
    stored = [one.read_bytes() for one in files if one.stat().st_nlink == 1]
    everything = b"\n".join((*(one.encode() for one in linked.said), *stored))
    everything = everything.replace(b"\\\\", b"\\")
    key = linked.key_file.read_text(encoding="utf-8")
    planted = {API_TOKEN, BRIDGE_PASSWORD, CLIENT_SECRET, key, *linked.planted}
    planted |= {SIDECAR_PIN, WRONG_PIN, SIDECAR_PASSWORD, *texts_in(linked.keys)}
    planted |= {MAIL_PASSWORD, WRONG_MAIL, DAV_PASSWORD, WRONG_DAV}
    devices = {*linked.api.device_codes, *linked.oauth.registry.devices}
    assert len(devices) > len(linked.api.device_codes) > 1  # the one that was agreed to as well
    planted |= devices
    assert len(linked.planted) == 7  # four invitations, one that is none, two who came in
    grants = linked.oauth.registry.grants
    planted |= {grants[-1].access_token, grants[-1].refresh_token, grants[0].access_token}
    leaks = [
        (secret[:6], name)
        for secret in planted
        for name, written in encodings(secret).items()
        if written.encode() in everything
    ]
    leaks += [
        (token[:6], name)
        for token, name in (*linked.api.shown, *linked.mail.shown, *linked.dav.shown)
        if encodings(token)[name].encode() in everything or token.encode() in everything
    ]
    leaks += [(one.user, "refresh") for one in grants if one.refresh_token.encode() in everything]
    assert leaks == []
    assert len(NAMES) >= 40
