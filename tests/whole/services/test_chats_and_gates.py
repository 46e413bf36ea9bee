"""Where a capability may be used, which gate says no first, and what a refused caller learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly
from whole.harness.services import (
    OPERATOR,
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    invoking,
    operation,
    result_of,
    somebody,
    step,
)

PING = operation("ping", requires_auth=False)
FOLDER = {
    "type": "object",
    "required": ["folder"],
    "properties": {"folder": {"type": "string"}},
}
CHATS = ("private", "group", "supergroup", "channel", "")
DENIED = "capability_access_denied"


def post_plan() -> dict[str, Any]:
    ops = [operation("echo"), PING]
    return {
        "definitions": [
            {"id": "post.plain", "description": "Only an id.", "operations": ops},
            capability("post.sensitive", *ops, sensitive=True),
            capability("post.wide", *ops, sensitive=True, allowed_chat_types=["private", "group"]),
            capability("post.narrow", *ops, allowed_chat_types=[" Private "]),
            capability("post.list", operation("list", input_schema=FOLDER), *ops, sensitive=True),
            capability("post.free", PING),
        ],
        "operations": {"gone": {"exit": 1}},
    }


@pytest.fixture(scope="module")
def post(module_path: Path) -> Bridge:
    return Bridge(module_path, "post", post_plan(), deny=["plain.denied"])


@pytest.fixture(scope="module")
def few(module_path: Path) -> Bridge:
    """Three calls a day, and operations that fail behind that gate."""
    ops = [
        operation("ping", requires_auth=False),
        operation("list", requires_auth=False, input_schema=FOLDER),
        operation("gone", requires_auth=False),
        operation("both", requires_auth=False),
    ]
    plan = {
        "definitions": [capability("few.one", *ops), capability("few.two", *ops)],
        "operations": {"gone": {"exit": 1}},
    }
    return Bridge(module_path, "few", plan, quota_per_day=3, deny=["*.both"])


@pytest.fixture(scope="module")
def limited(module_path: Path) -> Bridge:
    ops = [PING, operation("send", requires_auth=False, mutating=True)]
    plan = {"definitions": [capability("limited.one", *ops), capability("limited.two", *ops)]}
    return Bridge(module_path, "limited", plan, quota_per_day=1000, rate="default")


@pytest.fixture(scope="module")
def scarce(module_path: Path) -> Bridge:
    plan = {"definitions": [capability("scarce.one", PING)]}
    return Bridge(module_path, "scarce", plan, quota_per_day=2, rate="default")


@pytest.fixture(scope="module")
def desk(
    desks: Callable[..., Desk], post: Bridge, few: Bridge, limited: Bridge, scarce: Bridge
) -> Desk:
    return desks(post, few, limited, scarce).open()


def in_chat(chat_type: str) -> Person:
    person = somebody()
    return Person(person.user, chat_type, person.chat_id if chat_type else "")


@whole("SC-POL-01", "SC-RPC-01", "SC-RPC-02")
def test_a_list_says_of_each_capability_what_it_needs(desk: Desk) -> None:
    plain, everything = desk.asks(somebody(), step("list"), step("list", include_unavailable=True))
    for answer in (plain, everything):
        assert set(result_of(answer)) == {"capabilities"}
        rows = result_of(answer)["capabilities"]
        for one in rows:
            assert type(one["available"]) is bool, one
            assert type(one["requires_auth"]) is bool, one
            assert isinstance(one["id"], str)
            assert isinstance(one["description"], str)
    rows = {one["id"]: one for one in result_of(plain)["capabilities"]}
    bare = rows["post.plain"]
    assert (bare["sensitive"], bare["allowed_chat_types"]) == (False, [])
    assert bare["description"] == "Only an id."
    assert rows["post.sensitive"]["sensitive"] is True
    assert rows["post.wide"]["allowed_chat_types"] == ["group", "private"]
    bad = desk.refusal(somebody(), "list", include_unavailable="yes")
    assert bad["data"]["code"] == "capability_invalid_input"


@whole("SC-POL-02", "SC-POL-03", "SC-POL-04", "SC-AMB-17", "SC-AMB-18")
@pytest.mark.parametrize(
    ("name", "open_in"),
    [
        ("plain", {"private", "group", "supergroup", "channel", ""}),
        ("sensitive", {"private"}),
        ("wide", {"private", "group"}),
        ("narrow", {"private"}),
    ],
)
def test_the_kind_of_chat_decides_where_a_capability_may_be_used(
    desk: Desk, post: Bridge, name: str, open_in: set[str]
) -> None:
    for chat in CHATS:
        before = len(post.calls())
        [answer] = desk.asks(in_chat(chat), invoking(f"post.{name}", "ping"))
        if chat in open_in:
            assert result_of(answer)["ok"] is True, (name, chat)
        else:
            assert code_of(answer) == DENIED, (name, chat)
        assert len(post.calls()) == before + (chat in open_in)
    # In whatever case the front end writes it.
    [answer] = desk.asks(in_chat("PRIVATE"), invoking(f"post.{name}", "ping"))
    assert result_of(answer)["ok"] is True


@whole("SC-POL-05", "SC-POL-13", "SC-ERR-02")
def test_a_wrong_chat_can_neither_use_nor_link_nor_complete(desk: Desk, post: Bridge) -> None:
    ann = somebody()
    flow = desk.ask(ann, "auth.begin", capability="post.sensitive")["flow_id"]
    before = len(post.calls())
    group = ann.in_chat("group")
    answers = desk.asks(
        group,
        invoking("post.sensitive", "ping"),
        step("auth.begin", capability="post.sensitive", account_hint="new"),
        step("auth.complete", flow_id=flow, code="x"),
        step("auth.complete_callback", code="x", capability="post.sensitive"),
        step("auth.poll", flow_id=flow),
        step("auth.revoke", capability="post.sensitive", account_ref="x"),
    )
    assert [code_of(one) for one in answers] == [DENIED] * 6
    assert len(post.calls()) == before
    # Nor does the group see that a flow is pending; the person's own chat sees one, and only one.
    assert desk.ask(group, "auth.list") == {"flows": []}
    [left] = desk.ask(ann, "auth.list")["flows"]
    assert left["flow_id"] == flow
    assert desk.ask(ann, "auth.complete", flow_id=flow, code="x")["ok"] is True


@whole("SC-POL-14")
@pytest.mark.parametrize("name", ["sensitive", "wide", "narrow"])
def test_where_the_chat_matters_an_unknown_one_is_refused(desk: Desk, name: str) -> None:
    nowhere = Person(somebody().user, "", "")
    answers = desk.asks(
        nowhere, invoking(f"post.{name}", "ping"), step("auth.begin", capability=f"post.{name}")
    )
    assert [code_of(one) for one in answers] == [DENIED] * 2


@whole("SC-RPC-03", "SC-RPC-04", "SC-RPC-14", "SC-AMB-20")
def test_a_group_sees_what_it_may_use_and_of_the_rest_only_that_it_is_there(desk: Desk) -> None:
    ann, never = somebody(), somebody()
    desk.link(ann, "post.sensitive", "hidden-name")
    private = {one["id"]: one for one in desk.ask(ann, "list")["capabilities"]}
    assert private["post.sensitive"]["available"] is True
    assert private["post.sensitive"]["authenticated"] is True
    group = {one["id"] for one in desk.ask(ann.in_chat("group"), "list")["capabilities"]}
    assert "post.sensitive" not in group
    assert {"post.plain", "post.wide"} <= group
    rows = [
        {one["id"]: one for one in desk.ask(who, "list", include_unavailable=True)["capabilities"]}
        for who in (ann.in_chat("group"), never.in_chat("group"))
    ]
    assert rows[0]["post.sensitive"] == rows[1]["post.sensitive"]
    assert rows[0]["post.sensitive"]["available"] is False
    assert "hidden-name" not in json.dumps(rows)
    # What may be used does not depend on being linked, and one operation that needs an account
    # is enough to say so.
    unlinked = {one["id"]: one for one in desk.ask(never, "list")["capabilities"]}
    assert unlinked["post.sensitive"]["available"] is True
    assert unlinked["post.sensitive"]["authenticated"] is False
    assert (
        unlinked["post.sensitive"]["requires_auth"],
        unlinked["post.free"]["requires_auth"],
    ) == (
        True,
        False,
    )


@whole("SC-POL-10")
def test_an_operation_needs_its_account_its_input_and_a_provider_that_works(desk: Desk) -> None:
    ann = somebody()
    good = {"folder": "inbox"}
    assert desk.code(ann, "post.list", "list", input=good) == "capability_auth_required"
    desk.link(ann, "post.list")
    for bad in ({}, {"folder": 5}):
        assert desk.code(ann, "post.list", "list", input=bad) == "capability_invalid_input"
    assert desk.code(ann, "few.one", "gone") == "capability_backend_unavailable"
    assert desk.invoke(ann, "post.list", "list", input=good)["input"] == good


@whole("SC-POL-16")
def test_a_quota_is_each_persons_own_and_what_is_beyond_it_reaches_nobody(
    desk: Desk, few: Bridge
) -> None:
    ann, bob = somebody(), somebody()
    before = len(few.calls())
    answers = desk.asks(ann, *[invoking("few.one", "ping")] * 5)
    assert [("result" in one) for one in answers] == [True, True, True, False, False]
    assert code_of(answers[3]) == "capability_rate_limited"
    assert answers[3]["error"]["data"]["retry_after_seconds"] > 0
    assert len(exactly(before + 3, few.calls)) == before + 3
    refused = [one for one in desk.audit(ann, "capability_invoke") if one["outcome"] == "denied"]
    assert [(one["gate"], one["error.code"]) for one in refused] == [
        ("limits", "capability_rate_limited")
    ] * 2
    desk.invoke(ann, "few.two", "ping")  # another capability, another count
    desk.invoke(bob, "few.one", "ping")  # another person as well
    # Where nothing is configured nothing is limited.
    assert all("result" in one for one in desk.asks(ann, *[invoking("post.plain", "ping")] * 30))


@whole("SC-POL-16")
def test_of_several_limits_each_one_holds(desk: Desk, limited: Bridge, scarce: Bridge) -> None:
    """Five changes at once, twenty calls at once, six beginnings; and so many calls a day."""
    ann = somebody()
    sends = [
        invoking("limited.one", "send", input={"n": n}, idempotency_key=f"k{n}") for n in range(16)
    ]
    sent = desk.asks(ann, *sends)
    done = sum("result" in one for one in sent)
    assert 5 <= done < 16
    assert {code_of(one) for one in sent if "error" in one} == {"capability_rate_limited"}
    assert len(limited.asked("invoke", operation="send")) == done
    # Reading another capability goes on, up to its own limit.
    reads = desk.talk(ann, *[[invoking("limited.two", "ping")] * 6] * 8)
    read = sum("result" in one for found in reads for one in found)
    assert 20 <= read < 48
    assert len(limited.asked("invoke", capability_id="limited.two")) == read
    begun = desk.asks(
        ann,
        *(step("auth.begin", capability="limited.one", account_hint=f"h{n}") for n in range(9)),
    )
    assert [("result" in one) for one in begun][:6] == [True] * 6
    assert code_of(begun[-1]) == "capability_rate_limited"
    # Where a day's quota is the smaller one, it is what counts.
    few = desk.asks(ann, *[invoking("scarce.one", "ping")] * 3)
    assert [("result" in one) for one in few] == [True, True, False]
    assert code_of(few[2]) == "capability_rate_limited"
    assert len(scarce.asked("invoke")) == 2


PAIRS: list[tuple[str, Person, dict[str, Any], str]] = [
    ("token before id", somebody(), {"capability": "email", "token": "x"}, "token"),
    (
        "id before existence",
        somebody(),
        {"capability": "Post.nothing", "operation": "x"},
        "capability_invalid_input",
    ),
    (
        "existence before chat",
        somebody("group"),
        {"capability": "post.nothing", "operation": "ping"},
        "capability_not_found",
    ),
    (
        "chat before operation",
        somebody("group"),
        {"capability": "post.sensitive", "operation": "none"},
        DENIED,
    ),
    (
        "operation before account",
        somebody(),
        {"capability": "post.plain", "operation": "none", "account_ref": "x", "input": []},
        "capability_invalid_input",
    ),
    (
        "account before input",
        somebody(),
        {"capability": "post.list", "operation": "list", "input": {"folder": 5}},
        "capability_auth_required",
    ),
    (
        "input before limits",
        Person("used-up"),
        {"capability": "few.one", "operation": "list", "input": {}},
        "capability_invalid_input",
    ),
    (
        "limits before provider",
        Person("used-up"),
        {"capability": "few.one", "operation": "gone"},
        "capability_rate_limited",
    ),
]


@pytest.fixture(scope="module")
def used_up(desk: Desk) -> Person:
    person = Person("used-up")
    desk.asks(person, *[invoking("few.one", "ping")] * 3)
    return person


@whole("SC-ERR-08")
@pytest.mark.parametrize(("person", "given", "wanted"), [case[1:] for case in PAIRS])
def test_of_two_things_that_are_wrong_the_earlier_one_is_told(
    desk: Desk, used_up: Person, person: Person, given: dict[str, Any], wanted: str
) -> None:
    assert used_up.user == "used-up"
    token = {"token": given["token"]} if "token" in given else {}
    params = {key: value for key, value in given.items() if key != "token"}
    [answer] = desk.asks(person, {**step("invoke", **params), **token})
    if wanted == "token":
        assert answer["error"]["code"] == -32602
    else:
        assert code_of(answer) == wanted


@whole("SC-AMB-38")
def test_whose_session_it_is_decides_who_acts_and_where(desk: Desk) -> None:
    """The operator's own socket, a named front end, and one that nobody named."""
    ping = "ash-sb capability invoke -c post.sensitive -o ping --json"
    own = json.loads(desk.run(OPERATOR, ping)["stdout"])["output"]["claims"]
    assert (own["sub"], own["chat_type"], own["provider"]) == ("operator", "private", "kaged")
    ann = somebody()
    stated = json.loads(desk.run(ann, ping)["stdout"])["output"]["claims"]
    assert (stated["sub"], stated["chat_id"]) == (ann.user, ann.chat_id)
    for other in (ann.in_chat("group"), Person(ann.user, "", "")):
        assert DENIED in desk.run(other, f"{ping} 2>&1")["stdout"]
    # The same words from an address that the config does not name: it is the operator's token.
    body = {"agent": "primary", "tool": "shell.bash", "params": {"command": ping}}
    url = f"{desk.daemon.url}/api/v1/projects/{desk.project.id}/tools/call"
    headers = {"Authorization": f"Bearer {desk.daemon.token}", **ann.in_chat("group").headers}
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(transport=transport, trust_env=False, timeout=60) as stranger:
        got = stranger.post(url, json=body, headers=headers)
    Daemon.spoken += 1
    claims = json.loads(got.json()["result"]["stdout"])["output"]["claims"]
    assert (claims["sub"], claims["chat_type"]) == ("operator", "private")


@whole("SC-POL-11", "SC-AUD-03", "SC-ERR-08")
def test_where_only_skills_may_an_agent_is_refused_before_anything_else(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    """The same request in the same state, wrong at every gate, is refused the same way each time.

    Each gate's refusal is on record with the gate and the code.
    """
    strict = Bridge(tmp_path, "post", post_plan())
    desk = own_desk(strict, more="[capabilities]\nrequire_skill = true\n").open()
    group = somebody("group")
    wrong = invoking("post.sensitive", "none", input=[], account_ref="x")
    answers = desk.asks(group, *[wrong] * 100)
    assert {code_of(one) for one in answers} == {DENIED}
    assert len({json.dumps(one["error"]["message"]) for one in answers}) == 1
    unknown, unfit = desk.asks(group, invoking("post.nope", "x"), invoking("nope", "x"))
    assert (code_of(unknown), code_of(unfit)) == (DENIED, "capability_invalid_input")
    assert strict.calls() == []
    rows = desk.audit(group, "capability_invoke")
    assert len(rows) == 102
    assert {(one["gate"], one["error.code"]) for one in rows[:101]} == {("skill", DENIED)}
    assert desk.ask(somebody(), "list") == {"capabilities": []}


@whole("SC-AUD-03")
def test_each_gate_signs_its_own_refusal(desk: Desk, used_up: Person) -> None:
    ann = somebody()
    group = ann.in_chat("group")
    desk.asks(ann, invoking("post.nope", "x"))
    desk.asks(group, invoking("post.sensitive", "ping"))
    desk.asks(
        ann,
        invoking("post.plain", "none"),
        invoking("few.one", "both"),
        invoking("post.list", "list"),
        invoking("few.one", "list", input={}),
    )
    rows = desk.audit(ann, "capability_invoke")
    assert [(one["gate"], one["error.code"], one["outcome"]) for one in rows] == [
        ("existence", "capability_not_found", "denied"),
        ("capability", DENIED, "denied"),
        ("operation", "capability_invalid_input", "denied"),
        ("operation", DENIED, "denied"),
        ("account", "capability_auth_required", "denied"),
        ("input", "capability_invalid_input", "denied"),
    ]
    last = desk.refusal(used_up, "invoke", capability="few.one", operation="ping")
    assert last["data"]["code"] == "capability_rate_limited"
    assert desk.audit(used_up, "capability_invoke")[-1]["gate"] == "limits"
