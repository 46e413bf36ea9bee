"""Sidecars: programs on loopback, one for each person and capability, behind their tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import wait_for
from whole.harness.intranet import Intranet
from whole.harness.services import (
    GUESTS,
    PYTHON,
    Bridge,
    Desk,
    Person,
    code_of,
    invoking,
    result_of,
    segment,
    signed,
    somebody,
    step,
    unsegment,
)

EXAMPLE = Path(__file__).parents[3] / "plugins" / "examples" / "browser-sidecar" / "sidecar.py"
FAULTS = {
    "wide": "listens beyond loopback",
    "health": "answers those without its token",
    "borrowed": "does not listen at the port it named",
}
HEADER = {"alg": "HS256", "typ": "ASH_CONTEXT", "ver": 1}
CLIENT = httpx.Client(trust_env=False, timeout=60)
ONE, TWO, PAGES = "facts.one", "facts.two", "browser.pages"


@pytest.fixture(scope="module")
def intranet() -> Iterator[Intranet]:
    made = Intranet()
    yield made
    made.close()


@pytest.fixture(scope="module")
def secrets_of(module_path: Path) -> Path:
    made = module_path / "facts"
    made.mkdir()
    return made


def sidecar(folder: Path, name: str, *command: str, **section: Any) -> Bridge:
    return Bridge(folder, name, type="sidecar", command=[*PYTHON, *command], **section)


@pytest.fixture(scope="module")
def desk(
    module_path: Path, desks: Callable[..., Desk], intranet: Intranet, secrets_of: Path
) -> Desk:
    elsewhere = {"ASKED": str(module_path / "asked"), "ELSEWHERE": str(intranet.port)}
    unguarded = str(GUESTS / "sidecar_unguarded.py")
    return desks(
        sidecar(module_path, "browser", str(EXAMPLE), env={"BROWSER_SITE": intranet.url}),
        sidecar(
            module_path,
            "facts",
            str(GUESTS / "sidecar_facts.py"),
            env={"FACTS": str(secrets_of), "ASH_SIDECAR": "mine"},
            max_concurrency=4,
            timeout_seconds=6,
        ),
        *(sidecar(module_path, fault, unguarded, fault, env=elsewhere) for fault in FAULTS),
        sidecar(module_path, "caged", str(EXAMPLE), cage={"net": []}),
    ).open()


def port_of(facts: dict[str, Any]) -> int:
    [listens] = facts["listens"]
    return int(listens.partition(":")[2], 16)


def knock(port: int, token: str | None, body: bytes = b"{}", way: str = "POST /call") -> Any:
    method, path = way.split(" ")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{port}{path}"
    return CLIENT.request(method, url, content=body, headers=headers, timeout=30)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def link(desk: Desk, person: Person, name: str, password: str) -> str:
    flow = desk.ask(person, "auth.begin", capability=PAGES)
    page = flow["auth_url"]
    assert CLIENT.get(page, timeout=60).status_code == 200
    wrong = CLIENT.post(page, data={"name": name, "password": "guessed"}, timeout=60)
    assert wrong.status_code == 401
    done = CLIENT.post(page, data={"name": name, "password": password}, timeout=60)
    assert done.status_code == 200, done.text
    [code] = re.findall(r"<code>(.+?)</code>", done.text)
    linked = desk.ask(person, "auth.complete", flow_id=flow["flow_id"], code=code)
    return str(linked["account_ref"])


@whole("SC-BRG-19")
def test_the_example_browser_keeps_the_cookies_of_two_people_apart(
    desk: Desk, intranet: Intranet
) -> None:
    ann, bob = somebody(), somebody()
    password = intranet.employ(ann.user)
    assert link(desk, ann, ann.user, password) == f"acct_{ann.user}"
    first, missing = desk.asks(
        ann,
        invoking(PAGES, "open", input={"path": "/desk"}),
        invoking(PAGES, "open", input={"path": "/x"}),
    )
    seen = result_of(first)["output"]
    assert seen == {"text": f"Desk of {ann.user} Post", "links": ["/post"]}
    assert code_of(missing) == "capability_invalid_input"
    # Signed in once: the cookie is in the process, and nobody else's process has it.
    assert intranet.sign_ins.count(ann.user) == 1
    assert desk.code(bob, PAGES, "open", input={"path": "/desk"}) == "capability_auth_required"
    link(desk, bob, bob.user, intranet.employ(bob.user))
    assert bob.user in desk.invoke(bob, PAGES, "open", input={"path": "/desk"})["text"]
    # The site's session ends: the browser signs in with what the vault holds, unseen.
    intranet.sessions.clear()
    again, revoked, refused = desk.asks(
        ann,
        invoking(PAGES, "open", input={"path": "/desk"}),
        step("auth.revoke", capability=PAGES, account_ref=f"acct_{ann.user}"),
        invoking(PAGES, "open", input={"path": "/desk"}),
    )
    assert ann.user in result_of(again)["output"]["text"]
    assert intranet.sign_ins.count(ann.user) == 2
    assert result_of(revoked)["provider_revoked"] is True
    assert code_of(refused) == "capability_auth_required"
    assert bob.user in desk.invoke(bob, PAGES, "open", input={"path": "/desk"})["text"]


@whole("SC-BRG-17", "SC-BRG-19", "SC-BRG-21")
def test_every_person_and_capability_has_a_process_of_its_own_on_loopback(
    desk: Desk, secrets_of: Path
) -> None:
    ann, bob = somebody(), somebody()
    both = [invoking(ONE, "tell"), invoking(TWO, "tell")]
    facts = {
        (person, id_): result_of(answer)["output"]
        for person in (ann, bob)
        for id_, answer in zip((ONE, TWO), desk.asks(person, *both), strict=True)
    }
    for (person, id_), said in facts.items():
        assert [one.partition(":")[0] for one in said["listens"]] == ["0100007F"], "127.0.0.1"
        assert json.loads(said["sidecar"]) == {
            "provider": "facts", "scope": f"user:{person.user}", "target": id_,
        }  # fmt: skip
        assert said["callers"] == [person.user]
    for name in ("pid", "directory", "sidecar"):
        assert len({said[name] for said in facts.values()}) == 4, name
    keys = {(secrets_of / f"{one['pid']}.secret").read_text() for one in facts.values()}
    assert len(keys) == 4
    again = desk.invoke(ann, ONE, "tell")
    assert again["pid"] == facts[ann, ONE]["pid"]
    assert again["callers"] == [ann.user, ann.user]
    # The fifth takes the place of the one that was not used for the longest time.
    cid = somebody()
    assert desk.invoke(cid, ONE, "tell")["callers"] == [cid.user]
    wait_for(lambda: not alive(facts[ann, TWO]["pid"]), "the end of the one unused for longest")
    assert alive(facts[bob, TWO]["pid"])
    assert desk.invoke(ann, ONE, "tell")["pid"] == again["pid"]


@whole("SC-BRG-18", "SC-BRG-20", "SC-AMB-36")
def test_a_sidecar_answers_only_a_fresh_token_for_its_person_and_capability(
    desk: Desk, secrets_of: Path
) -> None:
    ann, bob = somebody(), somebody()
    his = desk.invoke(bob, ONE, "tell")
    hers, other = (
        result_of(one)["output"]
        for one in desk.asks(ann, invoking(ONE, "tell"), invoking(TWO, "tell"))
    )
    port = port_of(hers)
    key, his_key, other_key = (
        unsegment((secrets_of / f"{one['pid']}.secret").read_text()) for one in (hers, his, other)
    )
    now = hers["issued_at"]
    right = {
        "ver": 1, "sub": "kaged-host", "iat": now, "exp": now + 600, "jti": "a" * 32,
        "aud": "sidecar:facts", "provider": "facts",
        "session_key": f"user:{ann.user}", "thread_id": ONE,
    }  # fmt: skip
    asked = {"version": 1, "id": "x", "namespace": "facts", "method": "definitions", "params": {}}
    body = json.dumps(asked).encode()
    fresh = knock(port, signed(key, HEADER, right), body)
    assert fresh.status_code == 200
    assert fresh.json()["id"] == "x"
    wrong = {
        "expired": signed(key, HEADER, {**right, "iat": now - 700, "exp": now - 100}),
        "too long": signed(key, HEADER, {**right, "exp": now + 601}),
        "another target": signed(key, HEADER, {**right, "thread_id": TWO}),
        "another scope": signed(key, HEADER, {**right, "session_key": f"user:{bob.user}"}),
        "another provider": signed(key, HEADER, {**right, "provider": "browser"}),
        "another subject": signed(key, HEADER, {**right, "sub": ann.user}),
        "another audience": signed(key, HEADER, {**right, "aud": "bridge:facts"}),
        "no audience": signed(key, HEADER, {k: v for k, v in right.items() if k != "aud"}),
        "another person's key": signed(his_key, HEADER, right),
        "another capability's key": signed(other_key, HEADER, right),
        "no signature": f"{signed(key, HEADER, right).rpartition('.')[0]}.{segment(b'')}",
    }
    answers = {why: knock(port, token, body) for why, token in wrong.items()}
    ways = ("POST /call", "GET /call", "GET /", "GET /health", "DELETE /x", "OPTIONS /call")
    answers |= {way: knock(port, None, body, way) for way in ways}
    assert {why for why, one in answers.items() if one.status_code != 401} == set()
    assert len({one.content for one in answers.values()}) == 1
    # What is right for hers is nothing to the other two.
    for one in (his, other):
        assert knock(port_of(one), signed(key, HEADER, right), body).status_code == 401


@whole("SC-BRG-17", "SC-BRG-20")
def test_a_sidecar_that_is_not_guarded_is_never_asked_anything(
    desk: Desk, module_path: Path
) -> None:
    listed = {one["name"]: one for one in desk.providers()}
    refused = [line for line in desk.daemon.log().splitlines() if "sidecar.refused" in line]
    for fault, reason in FAULTS.items():
        assert listed[fault]["kind"] == "sidecar"
        assert listed[fault]["available"] is False, fault
        assert any(fault in line and reason in line for line in refused), refused
    asked = (module_path / "asked").read_bytes().splitlines()
    assert set(asked) == {b""}, "probes only"
    assert "caged" not in listed
    shown = desk.daemon.cli("doctor", code=None).out
    assert "the sidecar caged cannot be caged" in shown


def test_a_sidecar_that_hangs_or_ends_is_replaced_and_tells_no_key(
    desk: Desk, secrets_of: Path
) -> None:
    ann, bob = somebody(), somebody()
    first = desk.invoke(ann, ONE, "tell")
    with ThreadPoolExecutor(1) as threads:
        hung = threads.submit(desk.code, ann, ONE, "hang")
        # Meanwhile another person's ends, begins anew, and gives a key away.
        before, left, after, quoted = desk.asks(
            bob,
            *(invoking(ONE, name) for name in ("tell", "leave", "tell", "quote")),
        )
        assert hung.result(timeout=120) == "capability_backend_unavailable"
    assert code_of(left) == "capability_backend_unavailable"
    assert code_of(quoted) == "capability_invalid_output"
    one, two = result_of(before)["output"], result_of(after)["output"]
    assert one["pid"] != two["pid"]
    assert one["callers"] == two["callers"] == [bob.user]
    wait_for(lambda: "leaving with" in desk.daemon.log(), "what it wrote to standard error")
    written = desk.daemon.log()
    for file in secrets_of.iterdir():
        assert file.read_text() not in written
    assert "ASH_CONTEXT_TOKEN_SECRET" in two["env"]
    assert "KAGED_TOKEN" not in two["env"]
    wait_for(lambda: not alive(first["pid"]), "the end of the one that hung")
    assert desk.invoke(ann, ONE, "tell")["callers"] == [ann.user]


def test_sidecars_end_with_the_daemon_and_begin_anew(desk: Desk) -> None:
    ann = somebody()
    before = desk.invoke(ann, ONE, "tell")
    desk.reopen(kill=True)
    wait_for(lambda: not alive(before["pid"]), "the end of the sidecar of a killed daemon")
    again = desk.invoke(ann, ONE, "tell")
    assert again["callers"] == [ann.user]
    assert again["directory"] == before["directory"]
    desk.stop()
    wait_for(lambda: not alive(again["pid"]), "the end of the sidecar")
