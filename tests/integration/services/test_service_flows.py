"""Linking accounts: flows are short-lived, unguessable, one user's, used once."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import secrets
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fakes.service_lab import FakeProvider, ServiceLab, definition
from kaged.base import JsonObject, ManualClock
from kaged.services import authflow
from kaged.services.contract import (
    AuthBeginCall,
    AuthCompleteCall,
    AuthPollCall,
    AuthPollResult,
    CapabilityAuthBeginResult,
    CapabilityAuthCompleteResult,
    CapabilityAuthPending,
    InvokeCall,
)
from kaged.services.errors import (
    CapabilityAuthFlowDenied,
    CapabilityAuthFlowInvalid,
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityInvalidOutput,
    CapabilityRateLimited,
)
from kaged.services.flow import FlowEnds
from kaged.store.service_rows import FlowRow
from raising import raises_code
from requirements import requirement

URL = "https://login.example/authorize"
INVALID = "capability_auth_flow_invalid"


def _begin_with(**fields: Any) -> Any:
    async def begin(call: AuthBeginCall) -> CapabilityAuthBeginResult:
        given: dict[str, Any] = {"auth_url": URL, **fields}
        return CapabilityAuthBeginResult(**given)

    return begin


async def _begin(lab: ServiceLab, user: str = "alice", hint: str | None = None) -> Any:
    return await lab.call("auth.begin", user, capability="gog.email", account_hint=hint)


@requirement("SC-RPC-08")
async def test_begin_gives_a_handle_a_page_and_an_end(lab: ServiceLab) -> None:
    flow = await _begin(lab, hint="work")
    assert flow["flow_id"].startswith("caf_")
    assert flow["auth_url"].startswith("https://")
    assert flow["expires_at"].endswith("Z")
    expires = datetime.fromisoformat(flow["expires_at"])
    assert expires.timestamp() * 1000 > lab.clock.now_ms()
    assert set(flow) == {
        "flow_id",
        "capability",
        "account_hint",
        "auth_url",
        "expires_at",
        "flow_type",
    }


@requirement("SC-RPC-09", "SC-AUTH-10")
async def test_a_flow_is_completed_with_a_code_or_a_callback(lab: ServiceLab) -> None:
    work = await _begin(lab, hint="work")
    done = await lab.call("auth.complete", flow_id=work["flow_id"], code="abc")
    assert done == {"ok": True, "account_ref": "acct_work"}
    home = await _begin(lab, hint="home")
    url = "https://localhost/callback?code=abc"
    done = await lab.call("auth.complete", flow_id=home["flow_id"], callback_url=url)
    assert done == {"ok": True, "account_ref": "acct_home"}
    for ref in ("acct_work", "acct_home"):
        assert (await lab.invoke("whoami", account_ref=ref))["output"]["account"] == ref
    [row] = (await lab.call("list", "alice"))["capabilities"]
    assert [one["account_ref"] for one in row["linked_accounts"]] == ["acct_home", "acct_work"]
    [row] = (await lab.call("list", "bob"))["capabilities"]
    assert row["linked_accounts"] == []


@requirement("SC-AUTH-01", "SC-SEC-04")
async def test_nothing_secret_of_a_flow_reaches_the_sandbox(lab: ServiceLab) -> None:
    hidden = {"code_verifier": "VERIFIER-9d1f", "client_secret": "CLIENT-SECRET-77"}
    lab.provider.on_begin = _begin_with(
        flow_state=hidden, expected_callback_state="STATE-5512", uses_pkce=True
    )
    seen: list[Any] = []

    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        seen.append(call)
        await call.credentials.put({"refresh_token": "REFRESH-0042", "access_token": "ACCESS-1"})
        return CapabilityAuthCompleteResult("acct", metadata={"account_email": "a@x.example"})

    lab.provider.on_complete = complete
    transcript = [await _begin(lab)]
    transcript.append(await lab.call("auth.list"))
    transcript.append(
        await lab.call("auth.complete", flow_id=transcript[0]["flow_id"], code="the-code")
    )
    transcript.append(await lab.call("list"))
    for operation in ("whoami", "list_messages", "ping", "send"):
        given = {"folder": "inbox"}
        transcript.append(await lab.invoke(operation, given=given))
    text = json.dumps(transcript)
    for marker in ("VERIFIER", "CLIENT-SECRET", "STATE-5512", "REFRESH", "ACCESS"):
        assert marker not in text
    assert seen[0].flow_state == hidden  # and the provider had all of it


@requirement("SC-AUTH-02", "SC-ERR-04")
async def test_a_flow_ends_when_it_says(lab: ServiceLab) -> None:
    flow = await _begin(lab, hint="one")
    lab.clock.advance(1799)
    assert (await lab.call("auth.complete", flow_id=flow["flow_id"], code="c"))["ok"]
    flow = await _begin(lab, hint="two")
    lab.clock.advance(1801)
    for flow_id in (flow["flow_id"], "caf_" + "0" * 32):
        with pytest.raises(CapabilityAuthFlowInvalid):
            await lab.call("auth.complete", flow_id=flow_id, code="c")


async def test_a_flow_that_is_over_stays_so_when_the_clock_is_set_back(lab: ServiceLab) -> None:
    start = lab.clock.now_ms()
    flow, other = await _begin(lab), await _begin(lab, "bob")
    lab.clock.advance(1801)
    lab.clock.set_wall(start + 60_000)
    for user, one in (("alice", flow), ("bob", other)):
        assert (await lab.call("auth.list", user))["flows"] == []
        with raises_code(INVALID, CapabilityError):
            await lab.call("auth.complete", user, flow_id=one["flow_id"], code="c")
    # One that is pending lives as long as it would have, and not a day longer.
    fresh = await _begin(lab)
    assert fresh["flow_id"] != flow["flow_id"]
    lab.clock.set_wall(lab.clock.now_ms() - 30_000)
    assert (await lab.call("auth.list"))["flows"] == [fresh]
    lab.clock.set_wall(lab.clock.now_ms() - 86_400_000)
    assert (await lab.call("auth.list"))["flows"] == [fresh]
    lab.clock.advance(1801)
    with raises_code(INVALID, CapabilityError):
        await lab.call("auth.complete", flow_id=fresh["flow_id"], code="c")


def test_a_flow_of_an_earlier_daemon_that_begins_later_than_now_is_over(lab: ServiceLab) -> None:
    now_ms = lab.clock.now_ms()
    ends = FlowEnds(lab.clock)

    def begun(at_ms: int, name: str) -> FlowRow:
        ends_at_ms = at_ms + 1_800_000
        return FlowRow(name, "alice", "gog.email", None, "link", None, b"", 0, at_ms, ends_at_ms)

    assert ends.is_over(begun(now_ms + 86_400_000, "set back while nothing ran"))
    assert not ends.is_over(begun(now_ms + 30_000, "set back by a time server"))
    assert not ends.is_over(begun(now_ms - 60_000, "a minute ago"))


async def test_the_address_and_the_code_of_a_flow_lie_encrypted(
    lab: ServiceLab, tmp_path: Path
) -> None:
    lab.provider.on_begin = _begin_with(
        auth_url="https://login.example/MARKER-ADDRESS", user_code="MARKER-CODE"
    )
    flow = await _begin(lab)
    assert (flow["auth_url"], flow["user_code"]) == (
        "https://login.example/MARKER-ADDRESS",
        "MARKER-CODE",
    )
    await lab.close()
    for path in tmp_path.iterdir():
        assert not path.is_file() or b"MARKER" not in path.read_bytes(), path
    again = await ServiceLab(tmp_path, lab.clock).open()
    await again.register()
    assert (await again.call("auth.list"))["flows"] == [flow]
    await again.close()
    await lab.open()


@requirement("SC-AUTH-04")
async def test_another_user_cannot_complete_a_flow(lab: ServiceLab) -> None:
    flow = await _begin(lab, "alice")
    for _ in range(6):  # SC-AMB-32: and cannot wear it out
        with pytest.raises(CapabilityAuthFlowInvalid):
            await lab.call("auth.complete", "bob", flow_id=flow["flow_id"], code="right")
    assert lab.provider.of(AuthCompleteCall) == []
    for user in ("alice", "bob"):
        assert (await lab.call("list", user))["capabilities"][0]["authenticated"] is False
    assert (await lab.call("auth.complete", "alice", flow_id=flow["flow_id"], code="right"))["ok"]


@requirement("SC-AUTH-05")
async def test_flows_of_others_cannot_be_probed(lab: ServiceLab) -> None:
    used = await _begin(lab, hint="used")
    await lab.call("auth.complete", flow_id=used["flow_id"], code="c")
    old = await _begin(lab, hint="old")
    lab.clock.advance(1801)
    foreign = await _begin(lab, "bob")
    answers = set()
    for flow_id in ("caf_" + "a" * 32, old["flow_id"], used["flow_id"], foreign["flow_id"]):
        with pytest.raises(CapabilityAuthFlowInvalid) as refused:
            await lab.call("auth.complete", flow_id=flow_id, code="c")
        answers.add((refused.value.code, refused.value.message))
    assert len(answers) == 1


@requirement("SC-AUTH-06")
async def test_begin_wants_a_capability_that_may_be_used(lab: ServiceLab) -> None:
    await lab.register(FakeProvider("acme", definition("acme.email", sensitive=True)))
    cases: list[tuple[str, Any, str]] = [
        ("gog.nothing", ..., "capability_not_found"),
        ("email", ..., "capability_invalid_input"),
        ("acme.email", lab.token("alice", "group"), "capability_access_denied"),
    ]
    for capability, token, expected in cases:
        with raises_code(expected, CapabilityError):
            await lab.call("auth.begin", token=token, capability=capability)
    assert await lab.rows.all_flows() == ()


@requirement("SC-AUTH-08")
async def test_an_operation_without_auth_needs_no_account(lab: ServiceLab) -> None:
    assert (await lab.invoke("ping"))["ok"]
    [call] = lab.provider.of(InvokeCall)
    assert call.account_ref is None
    assert call.credentials is None
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("ping", account_ref="acct_of_somebody")


@requirement("SC-AUTH-11", "SC-NS-04")
async def test_a_flow_belongs_to_its_capability(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    await lab.register(FakeProvider("gog", definition("gog.email"), definition("gog.calendar")))
    await lab.register(FakeProvider("acme", definition("acme.email")))
    mail = await lab.call("auth.begin", capability="gog.email", account_hint="h")
    days = await lab.call("auth.begin", capability="gog.calendar", account_hint="h")
    for capability, flow in (("gog.email", mail), ("gog.calendar", days)):
        assert (await lab.call("auth.list", capability=capability))["flows"] == [flow]
    assert (await lab.call("auth.list", capability="acme.email"))["flows"] == []
    await lab.link(capability="gog.email")
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", capability="gog.calendar")
    await lab.link(capability="acme.email")
    assert {key[1] for key in await lab.vault_rows.keys()} == {"gog.email", "acme.email"}
    await lab.call("auth.revoke", capability="gog.email", account_ref="acct_default")
    assert (await lab.invoke("whoami", capability="acme.email"))["ok"]
    assert {key[1] for key in await lab.vault_rows.keys()} == {"acme.email"}


@requirement("SC-AUTH-12")
@pytest.mark.parametrize(
    "query", ["code=c&state=wrong", "code=c", "code=c&state=", "code=c&state=right&state=wrong"]
)
async def test_a_callback_with_another_state_is_refused(lab: ServiceLab, query: str) -> None:
    lab.provider.on_begin = _begin_with(expected_callback_state="right")
    flow = await _begin(lab)
    with pytest.raises(CapabilityError) as refused:
        await lab.call(
            "auth.complete", flow_id=flow["flow_id"], callback_url=f"https://x.example/cb?{query}"
        )
    if "&state=right" not in query:
        assert refused.value.code == "capability_auth_state_mismatch"
    else:
        assert refused.value.code in {
            "capability_auth_state_mismatch",
            "capability_auth_callback_invalid",
        }
    assert lab.provider.of(AuthCompleteCall) == []
    good = "https://x.example/cb?code=c&state=right"
    assert (await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=good))["ok"]


async def test_a_bare_code_needs_pkce_or_the_operators_word(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    await lab.register()
    lab.provider.on_begin = _begin_with(expected_callback_state="right")
    flow = await _begin(lab, hint="a")
    with raises_code("capability_auth_state_mismatch", CapabilityError):
        await lab.call("auth.complete", flow_id=flow["flow_id"], code="bare")
    lab.provider.on_begin = _begin_with(
        expected_callback_state="right", auth_url=f"{URL}?code_challenge=xyz"
    )
    flow = await _begin(lab, hint="b")
    assert (await lab.call("auth.complete", flow_id=flow["flow_id"], code="bare"))["ok"]
    lenient = FakeProvider("acme")
    lenient.on_begin = _begin_with(expected_callback_state="right")
    await lab.register(lenient, allow_stateless_code=True)
    flow = await lab.call("auth.begin", capability="acme.email")
    assert (await lab.call("auth.complete", flow_id=flow["flow_id"], code="bare"))["ok"]


async def test_a_callback_to_another_place_is_refused(lab: ServiceLab) -> None:
    lab.provider.on_begin = _begin_with(redirect_uri="https://host.example/cb")
    flow = await _begin(lab)
    for url in ("https://evil.example/cb?code=c", "http://host.example/cb?code=c"):
        with raises_code("capability_auth_callback_invalid", CapabilityError):
            await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url)
    url = "https://host.example/cb/?code=c"
    assert (await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url))["ok"]


@requirement("SC-AMB-08")
async def test_the_end_of_a_flow_is_the_providers_within_bounds(lab: ServiceLab) -> None:
    now = lab.clock.now_ms()

    async def ends_in(expires_ms: int | None, hint: str) -> float:
        lab.provider.on_begin = _begin_with(expires_at_ms=expires_ms)
        flow = await _begin(lab, hint=hint)
        assert len(flow["flow_id"]) >= len("caf_") + 32
        return datetime.fromisoformat(flow["expires_at"]).timestamp() - now / 1000

    assert await ends_in(None, "a") == 1800
    assert await ends_in(now + 60_000, "b") == 60
    assert await ends_in(now + 2 * 86_400_000, "c") == 3600
    with pytest.raises(CapabilityInvalidOutput):
        await ends_in(now - 1, "d")


@requirement("SC-AMB-08")
async def test_a_configured_end_of_flows_under_half_a_minute_is_raised(
    tmp_path: Path, clock: ManualClock
) -> None:
    lab = await ServiceLab(tmp_path, clock).open(flow_ttl_s=1)
    try:
        await lab.register()
        flow = await _begin(lab)
        ends = datetime.fromisoformat(flow["expires_at"]).timestamp()
        assert ends - clock.now_ms() / 1000 == 30
    finally:
        await lab.close()


@requirement("SC-AMB-09", "SC-AUTH-09")
async def test_what_a_person_pastes_becomes_one_code(lab: ServiceLab) -> None:
    lab.provider.on_begin = _begin_with(uses_pkce=True)

    async def code_of(number: int, **given: str) -> str:
        flow = await _begin(lab, hint=f"h{number}")
        await lab.call("auth.complete", flow_id=flow["flow_id"], **given)
        found: str = lab.provider.of(AuthCompleteCall)[-1].authorization_code
        return found

    pasted: list[dict[str, str]] = [
        {"callback_url": "https://localhost/callback?code=abc&state=s"},
        {"callback_url": "https://localhost/callback#code=abc"},
        {"callback_url": "<https://localhost/callback?code=abc>."},
        {"code": "abc"},
        {"code": " `abc`, "},
        {"code": "[(abc)];"},
        {"code": "a b\nc"},
        {"code": "code=abc&state=s"},
        {"code": "https://localhost/callback?code=abc"},
        {"code": "abc", "callback_url": "https://localhost/?code=abc"},
    ]
    for number, given in enumerate(pasted):
        assert await code_of(number, **given) == "abc", given
    flow = (await _begin(lab, hint="bad"))["flow_id"]
    cases: list[tuple[str, dict[str, str]]] = [
        ("code_conflict", {"code": "x", "callback_url": "https://h/?code=y"}),
        ("code_missing", {}),
        ("code_missing", {"callback_url": "https://h/?x=y"}),
        ("callback_invalid", {"callback_url": "no url at all"}),
    ]
    for expected, given in cases:
        with raises_code(f"capability_auth_{expected}", CapabilityError):
            await lab.call("auth.complete", flow_id=flow, **given)
    lab.provider.on_begin = _begin_with(expected_callback_state="s")
    flow = (await _begin(lab, hint="state"))["flow_id"]
    with raises_code("capability_auth_state_mismatch", CapabilityError):
        await lab.call("auth.complete", flow_id=flow, callback_url="https://h/?code=c&state=t")


async def test_a_person_who_says_no_ends_the_flow(lab: ServiceLab) -> None:
    flow = (await _begin(lab))["flow_id"]
    with pytest.raises(CapabilityAuthFlowDenied):
        await lab.call("auth.complete", flow_id=flow, callback_url="https://h/?error=access_denied")
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.complete", flow_id=flow, code="c")


@requirement("SC-AMB-32")
async def test_two_completions_at_once_are_one(lab: ServiceLab) -> None:
    go, reached = asyncio.Event(), asyncio.Event()

    async def slow(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        reached.set()
        await go.wait()
        return CapabilityAuthCompleteResult("acct")

    lab.provider.on_complete = slow
    flow = (await _begin(lab))["flow_id"]
    calls = [lab.call("auth.complete", flow_id=flow, code="c") for _ in range(2)]

    async def release() -> None:
        await reached.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        go.set()

    first, second, _ = await asyncio.gather(*calls, release(), return_exceptions=True)
    outcomes = {type(one).__name__ for one in (first, second)}
    assert outcomes == {"dict", "CapabilityAuthFlowInvalid"}
    assert len(lab.provider.of(AuthCompleteCall)) == 1

    # A provider that is down leaves the flow; five failures of its own user end it.
    async def down(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        raise CapabilityBackendUnavailable("later")

    lab.provider.on_complete = down
    flow = (await _begin(lab, hint="again"))["flow_id"]
    for _ in range(4):
        with pytest.raises(CapabilityBackendUnavailable):
            await lab.call("auth.complete", flow_id=flow, code="c")
    lab.provider.on_complete = None
    assert (await lab.call("auth.complete", flow_id=flow, code="c"))["ok"]
    lab.provider.on_complete = down
    flow = (await _begin(lab, hint="worn"))["flow_id"]
    for _ in range(5):
        with pytest.raises(CapabilityBackendUnavailable):
            await lab.call("auth.complete", flow_id=flow, code="c")
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.complete", flow_id=flow, code="c")

    # Denial ends it at once.
    async def no(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        raise CapabilityAuthFlowDenied("no")

    lab.provider.on_complete = no
    flow = (await _begin(lab, hint="denied"))["flow_id"]
    with pytest.raises(CapabilityAuthFlowDenied):
        await lab.call("auth.complete", flow_id=flow, code="c")
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.complete", flow_id=flow, code="c")
    # Six attempts of somebody else leave the owner able to complete.
    lab.provider.on_complete = None
    flow = (await _begin(lab, hint="mine"))["flow_id"]
    for _ in range(6):
        with pytest.raises(CapabilityAuthFlowInvalid):
            await lab.call("auth.complete", "bob", flow_id=flow, code="c")
    assert (await lab.call("auth.complete", flow_id=flow, code="c"))["ok"]


@requirement("SC-AMB-34")
async def test_beginning_twice_is_one_flow_and_ten_are_enough(lab: ServiceLab) -> None:
    flows = await asyncio.gather(*(_begin(lab, hint="work") for _ in range(5)))
    assert len({flow["flow_id"] for flow in flows}) == 1
    assert len(lab.provider.of(AuthBeginCall)) == 1
    assert (await _begin(lab, hint="home"))["flow_id"] != flows[0]["flow_id"]
    for number in range(8):
        await _begin(lab, hint=f"h{number}")
    with pytest.raises(CapabilityRateLimited):
        await _begin(lab, hint="eleventh")
    await _begin(lab, "bob")  # other users have room of their own
    await lab.call("auth.complete", flow_id=flows[0]["flow_id"], code="c")
    assert await _begin(lab, hint="eleventh")


@requirement("SC-AMB-23")
@pytest.mark.parametrize(
    "result",
    [
        CapabilityAuthCompleteResult("acct", credential_material={"refresh_token": "r"}),
        CapabilityAuthCompleteResult("acct", credential_material={"x": {"accessToken": "r"}}),
        CapabilityAuthCompleteResult(
            "acct", credential_material={"ref": "Bearer abcdef0123456789abcdef"}
        ),
        CapabilityAuthCompleteResult("acct", metadata={"client_secret": "s"}),
        CapabilityAuthCompleteResult("ghp_0123456789abcdef0123456789abcdef0123"),
        CapabilityAuthCompleteResult("line\nbreak"),
        CapabilityAuthCompleteResult(""),
    ],
)
async def test_an_account_that_carries_a_credential_is_not_linked(
    lab: ServiceLab, result: CapabilityAuthCompleteResult
) -> None:
    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        return result

    lab.provider.on_complete = complete
    flow = (await _begin(lab))["flow_id"]
    with pytest.raises(CapabilityInvalidOutput):
        await lab.call("auth.complete", flow_id=flow, code="c")
    assert await lab.vault_rows.keys() == ()
    assert (await lab.call("list"))["capabilities"][0]["authenticated"] is False
    with pytest.raises(CapabilityAuthFlowInvalid):  # the flow is gone
        await lab.call("auth.complete", flow_id=flow, code="c")
    lab.provider.on_complete = None
    flow = (await _begin(lab))["flow_id"]
    done = await lab.call("auth.complete", flow_id=flow, code="c")
    assert set(done) == {"ok", "account_ref"}


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/x",
        "ftp://login.example/x",
        "https://user:pw@login.example/",
        "https://login.example/?client_secret=x",
        "https://login.example/#access_token=x",
        "https://login.example/" + "a" * 5000,
        "javascript:alert(1)",
        "https://",
        "",
        "https://login.example/\n",
    ],
)
async def test_nobody_is_sent_to_a_page_that_is_no_login(lab: ServiceLab, url: str) -> None:
    lab.provider.on_begin = _begin_with(auth_url=url)
    with pytest.raises(CapabilityInvalidOutput):
        await _begin(lab)
    assert await lab.rows.all_flows() == ()


async def test_a_page_on_loopback_may_be_plain(lab: ServiceLab) -> None:
    lab.provider.on_begin = _begin_with(auth_url="http://127.0.0.1:8000/login")
    assert (await _begin(lab))["auth_url"] == "http://127.0.0.1:8000/login"


async def test_a_device_flow_is_polled_no_faster_than_it_says(lab: ServiceLab) -> None:
    answers: list[AuthPollResult] = [
        CapabilityAuthPending(7),
        CapabilityAuthPending(2),
        CapabilityAuthCompleteResult("acct_tv"),
    ]

    async def poll(call: AuthPollCall) -> AuthPollResult:
        return answers.pop(0)

    lab.provider.on_poll = poll
    lab.provider.on_begin = _begin_with(
        flow_type="device_code", user_code="ABCD", poll_interval_s=3
    )
    flow = await _begin(lab)
    assert flow["user_code"] == "ABCD"
    assert flow["poll_interval_seconds"] == 3
    poll_params = {"flow_id": flow["flow_id"]}
    waiting = {"status": "pending", "retry_after_seconds": 7}
    assert await lab.call("auth.poll", **poll_params) == waiting
    assert (await lab.call("auth.poll", **poll_params))["status"] == "pending"
    assert len(lab.provider.of(AuthPollCall)) == 1
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.poll", "bob", **poll_params)
    lab.clock.advance(7)
    assert await lab.call("auth.poll", **poll_params) == waiting  # the slow-down stays
    lab.clock.advance(7)
    assert await lab.call("auth.poll", **poll_params) == {"ok": True, "account_ref": "acct_tv"}
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.poll", **poll_params)
    plain = FakeProvider("acme")
    await lab.register(plain)
    flow = await lab.call("auth.begin", capability="acme.email")
    with pytest.raises(CapabilityInvalidInput):
        await lab.call("auth.poll", flow_id=flow["flow_id"])


async def test_a_callback_finds_its_flow_by_its_state(lab: ServiceLab) -> None:
    async def begin(call: AuthBeginCall) -> CapabilityAuthBeginResult:
        return CapabilityAuthBeginResult(URL, expected_callback_state=f"s-{call.account_hint}")

    lab.provider.on_begin = begin
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.complete_callback", callback_url="https://h/?code=c&state=s-a")
    flows = {hint: await _begin(lab, hint=hint) for hint in ("a", "b")}
    await _begin(lab, "bob", hint="c")
    with raises_code("capability_auth_flow_ambiguous", CapabilityError):
        await lab.call("auth.complete_callback", code="bare")
    with raises_code("capability_auth_state_mismatch", CapabilityError):
        await lab.call("auth.complete_callback", callback_url="https://h/?code=c&state=s-c")
    done = await lab.call("auth.complete_callback", callback_url="https://h/?code=c&state=s-b")
    assert done == {
        "ok": True,
        "account_ref": "acct_b",
        "flow_id": flows["b"]["flow_id"],
        "capability": "gog.email",
        "account_hint": "b",
    }


async def test_pending_flows_are_listed_for_their_owner(lab: ServiceLab) -> None:
    one = await _begin(lab, hint="one")
    lab.clock.advance(10)
    two = await _begin(lab, hint="two")
    assert (await lab.call("auth.list"))["flows"] == [two, one]
    assert (await lab.call("auth.list", account_hint="one"))["flows"] == [one]
    assert (await lab.call("auth.list", "bob"))["flows"] == []


@requirement("SC-AUTH-03")
async def test_flow_ids_are_unguessable(lab: ServiceLab, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [authflow.new_flow_id() for _ in range(100_000)]
    assert all(len(one) == 4 + 32 and one.startswith("caf_") for one in made)
    numbers = [int(one[4:], 16) for one in made]
    assert len(set(numbers)) == 100_000
    # No common sequence: all 32 places take every digit about equally often, also in what changes
    # from one id to the next, and no step between two of them comes again.
    steps = [f"{one ^ two:032x}" for one, two in pairwise(numbers)]
    for texts in ([one[4:] for one in made], steps):
        for place in zip(*texts, strict=True):
            counts = Counter(place).values()
            assert len(counts) == 16
            assert 5_500 < min(counts) <= max(counts) < 7_000
    assert len({two - one for one, two in pairwise(numbers)}) == 99_999
    # What begins a flow uses nothing else, and that is the system's own generator.
    asked: list[int] = []

    def drawn(count: int) -> str:
        asked.append(count)
        return secrets.token_bytes(count).hex()

    monkeypatch.setattr(secrets, "token_hex", drawn)
    flow = await _begin(lab)
    assert asked == [16]
    assert re.fullmatch("caf_[0-9a-f]{32}", flow["flow_id"])
    assert inspect.getmodule(secrets.token_bytes) is secrets
    assert "import random" not in inspect.getsource(authflow)


async def test_flows_and_accounts_outlive_a_restart(lab: ServiceLab, tmp_path: Path) -> None:
    lab.provider.on_begin = _begin_with(
        flow_state={"code_verifier": "MARKER-VERIFIER"}, expected_callback_state="st"
    )
    flow = await _begin(lab)
    await lab.manager.close()
    await lab.audit.close()
    await lab.store.close()
    for path in tmp_path.iterdir():
        if path.is_file():
            assert b"MARKER-VERIFIER" not in path.read_bytes()
    again = ServiceLab(tmp_path, lab.clock)
    await again.open()
    await again.register()
    url = "https://h/?code=c&state=st"
    assert (await again.call("auth.complete", flow_id=flow["flow_id"], callback_url=url))["ok"]
    [call] = again.provider.of(AuthCompleteCall)
    assert call.flow_state == {"code_verifier": "MARKER-VERIFIER"}
    assert (await again.invoke("whoami"))["ok"]
    await again.close()
    await lab.open()


async def test_revoking_forgets_account_and_credential(lab: ServiceLab) -> None:
    ref = await lab.link()
    assert len(await lab.vault_rows.keys()) == 1
    with raises_code("capability_auth_required", CapabilityError):
        await lab.call("auth.revoke", "bob", capability="gog.email", account_ref=ref)
    done: JsonObject = await lab.call("auth.revoke", capability="gog.email", account_ref=ref)
    assert done == {"ok": True, "account_ref": ref, "provider_revoked": False}
    assert await lab.vault_rows.keys() == ()
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami")
