"""What goes wrong at a service or in a request, and how it is named; what counts and where."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from fakes.tls_mail import make_ca, make_certificate
from requirements.marker import whole
from whole.harness.daemon import exactly
from whole.harness.services import (
    METHODS,
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    error_of,
    invoking,
    operation,
    provider_toml,
    result_of,
    somebody,
    step,
)

ZONE = "Pacific/Kiritimati"
SLOW_S = 60  # between the count of a call and its record
DESCRIPTION = """\
description = "A service"
[operations.me]
description = "Say hello."
path = "/me"
[operations.hidden]
description = "Ask for what is not allowed."
path = "/hidden"
[operations.add]
description = "Add what is not allowed."
method = "POST"
path = "/hidden"
"""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        return

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))  # else the answer is reset
        denied = self.path == "/hidden"
        data = json.dumps({"message": "not for you"} if denied else {"hello": "you"}).encode()
        self.send_response(403 if denied else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer  # noqa: N815 - the library's names


@pytest.fixture(scope="module")
def secure(module_path: Path) -> Iterator[tuple[str, Path]]:
    """An HTTPS server with a certificate of a private authority; its address and the authority."""
    ca = make_ca("ours")
    pem = make_certificate(ca, "localhost").save(module_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}", ca.save(module_path, "ca")
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path, secure: tuple[str, Path]) -> Desk:
    url, ca_file = secure
    other = make_ca("another").save(module_path, "other")
    common = {"name": "api", "description": "api.toml", "base_url": url, "auth": "none"}
    sections = {
        "trusting": {"ca_file": str(ca_file)},
        "public": {},
        "mistaken": {"ca_file": str(other)},
        "absent": {"ca_file": "no-such-file.pem"},
    }
    more = "".join(
        provider_toml(name, type="rest", settings={**common, "sensitive": False, **said})
        for name, said in sections.items()
    )
    for name, said in (("dav", {"ca_file": str(ca_file)}), ("davpublic", {})):
        more += provider_toml(name, type="caldav", settings={"url": url + "/", **said})
    with_tls = {"imap": url.removeprefix("https://")}
    more += provider_toml("mailpublic", type="imap", settings=with_tls)
    ops = [
        operation("ping", requires_auth=False),
        operation("send", requires_auth=False, mutating=True),
    ]
    bridge = Bridge(
        module_path,
        "counted",
        {"definitions": [capability("counted.box", *ops)]},
        quota_per_day=8,
        rate="default",
    )
    made = desks(bridge, more=more, env={"TZ": ZONE})
    made.daemon.write("api.toml", DESCRIPTION)
    return made.open()


def test_what_a_service_does_not_allow_is_denied_and_not_a_wrong_input(desk: Desk) -> None:
    ann = somebody()
    answers = desk.asks(ann, *(invoking("trusting.api", name) for name in ("hidden", "add", "me")))
    for answer in answers[:2]:
        assert code_of(answer) == "capability_access_denied"
        assert "not for you" in error_of(answer)["message"]
    assert result_of(answers[2])["output"]["data"] == {"hello": "you"}
    rows = desk.audit(ann, "capability_invoke")
    assert [(one["outcome"], one["gate"]) for one in rows[:2]] == [("error", "provider")] * 2


@whole("SC-ERR-06")
def test_a_certificate_that_is_not_accepted_is_named_as_that(desk: Desk) -> None:
    ann = somebody()
    for name in ("public", "mistaken"):
        error = desk.refusal(ann, "invoke", capability=f"{name}.api", operation="me")
        assert error["data"]["code"] == "capability_backend_unavailable"
        assert "certificate of the service is not accepted" in error["message"]
        assert "ca_file" in error["message"]
    # A file that is not there is a fault of the section, and said at the start.
    assert desk.code(ann, "absent.api", "me") == "capability_not_found"
    said = json.dumps(desk.daemon.cli("doctor", "--json", code=None).json)
    assert "ca_file holds no certificates" in said


@whole("SC-ERR-06")
def test_mail_and_calendars_name_a_certificate_that_is_not_accepted_too(desk: Desk) -> None:
    """The server is no calendar either: with its authority known, that is what is wrong."""
    ann = somebody()
    said: dict[str, str] = {}
    for id_ in ("dav.calendar", "davpublic.calendar", "mailpublic.email"):
        flow = desk.ask(ann, "auth.begin", capability=id_)
        form = {"email": "ann@example.org", "password": "some pass word"}
        page = httpx.post(flow["auth_url"], data=form, trust_env=False, timeout=60)
        said[id_] = page.text
    assert "certificate" not in said["dav.calendar"]
    for id_ in ("davpublic.calendar", "mailpublic.email"):
        assert "certificate" in said[id_], said[id_]
        assert "ca_file" in said[id_]


@whole("SC-AMB-03", "SC-RPC-05")
@pytest.mark.parametrize("given", [[], {}, [1], {"a": 1}, 7, True])
def test_a_capability_that_is_no_text_is_a_wrong_input_of_every_method(
    desk: Desk, given: Any
) -> None:
    ann = somebody()
    names = [one.removeprefix("capability.") for one in METHODS if one != "capability.list"]
    flow = "caf_" + "0" * 32
    for name in names:
        if name in {"auth.complete", "auth.poll", "auth.cancel"}:
            continue  # these name a flow
        error = desk.refusal(ann, name, capability=given, flow_id=flow, code="x", operation="ping")
        assert error["data"]["code"] == "capability_invalid_input", name
        assert "capability" in error["message"], name


@whole("SC-AUD-01")
def test_the_record_of_a_call_says_in_which_project_it_was_made(desk: Desk) -> None:
    ann = somebody()
    desk.asks(
        ann, invoking("counted.box", "ping"), invoking("counted.box", "none"), step("auth.list")
    )
    rows = exactly(
        2,
        lambda: [
            one
            for one in desk.daemon.audit("capability_invoke")
            if one["data"]["user_id"] == ann.user
        ],
    )
    assert [one["project_id"] for one in rows] == [desk.project.id] * 2


@whole("SC-TOK-04")
@pytest.mark.parametrize("user", ["@ann:example.org", "@a_b.c=d:matrix.example:8448", "ann@x.org"])
def test_people_of_matrix_are_people(desk: Desk, user: str) -> None:
    person = Person(user, "private", "!room:example.org")
    desk.asks(person, invoking("counted.box", "ping"))
    [row] = exactly(1, lambda: desk.audit(person, "capability_invoke"))
    assert (row["user_id"], row["chat_id"]) == (user, "!room:example.org")


@whole("SC-POL-16")
def test_a_call_that_its_rate_refuses_takes_nothing_of_the_days_quota(
    desk: Desk,
) -> None:
    """Five changes are allowed at once, eight calls a day: after ten tries to change there are
    as many calls left as there were no changes."""
    ann = somebody()
    sends = [invoking("counted.box", "send", input={"n": n}) for n in range(10)]
    answers = desk.asks(ann, *sends, *[invoking("counted.box", "ping")] * 8)
    done = sum("result" in one for one in answers[:10])
    assert 5 <= done < 8
    pings = answers[10:]
    assert ["result" in one for one in pings] == [n < 8 - done for n in range(8)]
    refused = error_of(pings[-1])
    assert "the 8 calls of this day" in refused["message"]
    # Kiritimati is fourteen hours ahead: its midnight is ten o'clock in the morning in UTC.
    left = refused["data"]["retry_after_seconds"]
    when = exactly(18, lambda: _rows(desk, ann))[-1]["timestamp"]
    there = datetime.fromisoformat(when).astimezone(ZoneInfo(ZONE))
    midnight = datetime.combine(there.date() + timedelta(days=1), time(), tzinfo=there.tzinfo)
    off = left - (midnight - there).total_seconds()
    assert min(off % 86_400, -off % 86_400) < SLOW_S, (left, when)


def _rows(desk: Desk, person: Person) -> list[dict[str, Any]]:
    rows = desk.daemon.audit("capability_invoke")
    return [one for one in rows if one["data"]["user_id"] == person.user]
