"""The example bridges in Python and in Node: linked in three ways, used, renewed, taken back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import wait_for
from whole.harness.harbour import Harbour
from whole.harness.services import (
    PYTHON,
    Bridge,
    Desk,
    Person,
    capability,
    result_of,
    somebody,
    step,
)

EXAMPLES = Path(__file__).parents[3] / "plugins" / "examples" / "harbour-bridge"
LOG, CRANE, LOCKER = "harbour.log", "harbour.crane", "harbour.locker"


@pytest.fixture(scope="module")
def harbour() -> Iterator[Harbour]:
    made = Harbour()
    yield made
    made.close()


@pytest.fixture(scope="module", params=["python", "node"])
def desk(
    request: pytest.FixtureRequest, module_path: Path, desks: Callable[..., Desk], harbour: Harbour
) -> Desk:
    language: str = request.param
    state = module_path / language
    state.mkdir(mode=0o700)
    commands = {
        "python": [*PYTHON, str(EXAMPLES / "bridge.py")],
        "node": ["/usr/bin/node", str(EXAMPLES / "bridge.mjs")],
    }
    env = {"HARBOUR_URL": harbour.url, "HARBOUR_STATE": str(state)}
    section: dict[str, Any] = {"command": commands[language], "env": env, "mode": "persistent"}
    return desks(Bridge(module_path, "harbour", **section)).open()


def entries(desk: Desk, person: Person, id_: str) -> list[str]:
    return list(desk.invoke(person, id_, "list", input={})["entries"])


def link_by_callback(desk: Desk, harbour: Harbour, person: Person) -> str:
    flow = desk.ask(person, "auth.begin", capability=LOG)
    state = re.findall(r"state=([0-9a-f]+)", flow["auth_url"])[0]
    callback = f"http://127.0.0.1/callback?code={harbour.code_for(person.user)}&state={state}"
    done = desk.ask(person, "auth.complete", flow_id=flow["flow_id"], callback_url=callback)
    return str(done["account_ref"])


@whole("SC-BRG-13")
def test_a_callback_links_the_account_of_whoever_began(desk: Desk, harbour: Harbour) -> None:
    ann, bob = somebody(), somebody()
    assert link_by_callback(desk, harbour, ann) == f"acct_{ann.user}"
    assert entries(desk, ann, LOG) == [f"{ann.user} moors", f"{ann.user} leaves"]
    assert desk.code(bob, LOG, "list", input={}) == "capability_auth_required"
    link_by_callback(desk, harbour, bob)
    assert entries(desk, bob, LOG)[0] == f"{bob.user} moors"
    assert desk.invoke(bob, LOG, "list", input={"limit": 1}) == {"entries": [f"{bob.user} moors"]}
    # A callback with another state, and a code that the service does not know.
    flow = desk.ask(ann, "auth.begin", capability=LOG, account_hint="second")
    wrong = f"http://127.0.0.1/callback?code={harbour.code_for(ann.user)}&state=0000"
    refused = desk.refusal(ann, "auth.complete", flow_id=flow["flow_id"], callback_url=wrong)
    assert refused["data"]["code"] == "capability_auth_state_mismatch"
    # Its token is renewed where it is too old; nobody notices.
    before = harbour.renewals
    harbour.expire(ann.user)
    assert entries(desk, ann, LOG)[0] == f"{ann.user} moors"
    assert harbour.renewals == before + 1
    assert entries(desk, ann, LOG)[0] == f"{ann.user} moors"
    assert harbour.renewals == before + 1
    # Taken back at the service, too; the other person's stays.
    done = desk.ask(ann, "auth.revoke", capability=LOG, account_ref=f"acct_{ann.user}")
    assert done["provider_revoked"] is True
    assert desk.code(ann, LOG, "list", input={}) == "capability_auth_required"
    assert ann.user not in harbour.refresh.values()
    assert entries(desk, bob, LOG)[0] == f"{bob.user} moors"
    harbour.denied.add(bob.user)
    assert desk.code(bob, LOG, "list", input={}) == "capability_access_denied"


def test_polling_links_once_the_person_has_agreed_elsewhere(desk: Desk, harbour: Harbour) -> None:
    ann, bob = somebody(), somebody()
    flow = desk.ask(ann, "auth.begin", capability=CRANE)
    assert flow["flow_type"] == "device_code"
    assert desk.ask(ann, "auth.poll", flow_id=flow["flow_id"])["status"] == "pending"
    harbour.approve(flow["user_code"], ann.user)
    assert desk.refusal(bob, "auth.poll", flow_id=flow["flow_id"])["data"]["code"] == (
        "capability_auth_flow_invalid"
    )

    def linked() -> Any:
        [answer] = desk.asks(ann, step("auth.poll", flow_id=flow["flow_id"]))
        if "error" in answer:
            assert answer["error"]["data"]["code"] == "capability_rate_limited", answer
            return None
        found = result_of(answer)
        return found if found.get("ok") else None

    assert wait_for(linked, "the end of the flow")["account_ref"] == f"acct_{ann.user}"
    assert entries(desk, ann, CRANE) == [f"{ann.user} moors", f"{ann.user} leaves"]
    harbour.expire(ann.user)
    assert entries(desk, ann, CRANE)[0] == f"{ann.user} moors"


def submit(url: str, **fields: str) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as browser:
        page = browser.get(url)
        assert page.status_code == 200, page.text
        assert "Locker token" in page.text
        return browser.post(url, data=fields)


def test_a_token_goes_from_the_page_to_vault_and_bridge_and_through_no_chat(
    desk: Desk, harbour: Harbour
) -> None:
    ann, bob = somebody(), somebody()
    tokens = {one.user: harbour.personal(one.user) for one in (ann, bob)}
    for person in (ann, bob):
        flow = desk.ask(person, "auth.begin", capability=LOCKER)
        assert flow["auth_url"].startswith("http://127.0.0.1:")
        wrong = submit(flow["auth_url"], berth="west", **{"pass": "no-such-token-at-all"})
        assert wrong.status_code == 401
        assert "does not know this token" in wrong.text
        done = submit(flow["auth_url"], berth="west", **{"pass": tokens[person.user]})
        assert done.status_code == 200, done.text
        assert tokens[person.user] not in done.text
        code = re.findall(r"<code>(.+?)</code>", done.text)[0]
        # The code of one person's page is nobody else's.
        other = bob if person is ann else ann
        refused = desk.refusal(other, "auth.complete", flow_id=flow["flow_id"], code=code)
        assert refused["data"]["code"] == "capability_auth_flow_invalid"
        linked = desk.ask(person, "auth.complete", flow_id=flow["flow_id"], code=code)
        assert linked["account_ref"] == "acct_west"
        assert submit_again(flow["auth_url"]) == 404
    for person in (ann, bob):
        assert entries(desk, person, LOCKER)[0] == f"{person.user} moors"
    said = (
        desk.daemon.log()
        + json.dumps(desk.daemon.audit())
        + json.dumps([desk.accounts(one.user) for one in (ann, bob)])
    )
    home = [file for file in desk.daemon.home.rglob("*") if file.is_file()]
    for token in tokens.values():
        assert token not in said
        assert not [file for file in home if token.encode() in file.read_bytes()]
    desk.ask(ann, "auth.revoke", capability=LOCKER, account_ref="acct_west")
    assert harbour.revoked[-1] == tokens[ann.user]
    assert desk.code(ann, LOCKER, "list", input={}) == "capability_auth_required"
    assert entries(desk, bob, LOCKER)[0] == f"{bob.user} moors"


def submit_again(url: str) -> int:
    with httpx.Client(trust_env=False, timeout=60) as browser:
        return browser.get(url).status_code


PIN = {"name": "pin", "label": "PIN", "secret": True}
ODD: dict[str, dict[str, Any]] = {
    "a member of the host's": {"flow_state": {"kaged.page": {"ticket": "x"}}},
    "no secret": {"fields": [{"name": "berth", "label": "Berth"}]},
    "one name twice": {"fields": [PIN, PIN]},
    "a name with a blank": {"fields": [{**PIN, "name": "a b"}]},
    "no label": {"fields": [{"name": "pin", "secret": True}]},
    "too many": {"fields": [{**PIN, "name": f"pin{n}"} for n in range(17)]},
    "no list": {"fields": {"pin": "PIN"}},
    "a device code as well": {"fields": [PIN], "flow_type": "device_code"},
}


@whole("SC-BRG-10")
def test_fields_that_cannot_be_shown_begin_no_flow(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    bridge = Bridge(tmp_path, "odd")
    offered = {"definitions": [capability("odd.box")]}
    desk = own_desk(bridge).open()
    ann = somebody()
    for why, begin in ODD.items():
        bridge.plan({**offered, "begin": begin})
        refused = desk.refusal(ann, "auth.begin", capability="odd.box")
        assert refused["data"]["code"] == "capability_invalid_output", why
    assert desk.ask(ann, "auth.list")["flows"] == []
    bridge.plan({**offered, "begin": {"fields": [PIN]}})
    flow = desk.ask(ann, "auth.begin", capability="odd.box")
    assert submit_again(flow["auth_url"]) == 200
    # It does not know `auth_submit`: that is said on the page, and the flow stays.
    with httpx.Client(trust_env=False, timeout=60) as browser:
        assert browser.post(flow["auth_url"], data={"pin": "open sesame"}).status_code == 401
    assert submit_again(flow["auth_url"]) == 200
    desk.reopen()
    desk.ask(ann, "list")
    assert submit_again(flow["auth_url"]) == 200  # the page outlives the daemon


def test_the_page_of_a_bridge_is_closed_by_five_wrong_tokens_and_by_its_person(
    desk: Desk,
) -> None:
    ann = somebody()
    flow = desk.ask(ann, "auth.begin", capability=LOCKER)
    answers = [submit(flow["auth_url"], berth="", **{"pass": f"wrong-token-{n}"}) for n in range(5)]
    assert [one.status_code for one in answers] == [401, 401, 401, 401, 403]
    assert submit_again(flow["auth_url"]) == 404
    # A new one comes for the asking, and goes when it is given up.
    second = desk.ask(ann, "auth.begin", capability=LOCKER)
    assert second["flow_id"] != flow["flow_id"]
    assert submit_again(second["auth_url"]) == 200
    desk.ask(ann, "auth.cancel", flow_id=second["flow_id"])
    assert submit_again(second["auth_url"]) == 404
