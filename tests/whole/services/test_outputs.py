"""What leaves the host: inputs that fit, outputs without a credential, and nothing half-way."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.services import (
    Bridge,
    Desk,
    capability,
    code_of,
    error_of,
    invoking,
    linking,
    operation,
    result_of,
    somebody,
    step,
)

BAD_OUTPUT = "capability_invalid_output"
BAD_INPUT = "capability_invalid_input"
KEYS = (
    *("access_token", "refresh_token", "id_token", "client_secret"),
    *("cookie", "cookies", "set_cookie", "authorization"),
)
SPELLINGS = ("Access-Token", "SET-COOKIE", "accessToken", " refresh_token ", "Client_Secret")
VALUE = "marker-value-0815"
FOLDER = {
    "type": "object",
    "required": ["folder"],
    "properties": {"folder": {"type": "string"}},
}
ANSWER = {
    "type": "object",
    "required": ["count"],
    "properties": {"count": {"type": "integer"}},
}


def leaks() -> dict[str, dict[str, Any]]:
    """Return outputs with a credential in them, by name."""
    found: dict[str, dict[str, Any]] = {}
    for number, key in enumerate((*KEYS, *SPELLINGS)):
        found[f"top{number}"] = {"fine": 1, key: VALUE}
        found[f"nested{number}"] = {"fine": {"deeper": {key: VALUE}}}
        found[f"listed{number}"] = {"fine": [{"ok": 1}, [{key: VALUE}]]}
    found["header"] = {"headers": [{"name": "Authorization", "value": f"Bearer {VALUE}"}]}
    found["pair"] = {"headers": [["Set-Cookie", f"sid={VALUE}; Path=/"]]}
    return found


FINE: dict[str, dict[str, Any]] = {
    "page": {"next_page_token": "abc", "items": []},
    "words": {"text": "send the access_token and the cookie, please", "tags": ["cookie", "tea"]},
    "empty": {},
}


@pytest.fixture(scope="module")
def out(module_path: Path) -> Bridge:
    outputs = {**leaks(), **FINE}
    ops = [operation(name, requires_auth=False) for name in outputs]
    checked = [
        operation("list", requires_auth=False, input_schema=FOLDER),
        operation("count", requires_auth=False, output_schema=ANSWER),
        operation("miscount", requires_auth=False, output_schema=ANSWER),
        operation("textcount", requires_auth=False, output_schema=ANSWER),
        operation("free", requires_auth=False),
    ]
    said = {name: {"output": output} for name, output in outputs.items()}
    said |= {
        "count": {"output": {"count": 3}},
        "miscount": {"output": {"counted": VALUE}},
        "textcount": {"output": {"count": VALUE}},
    }
    plan = {
        "definitions": [
            capability("out.leaks", *ops),
            capability("out.box", *checked),
            capability("out.plain", {"name": "bare", "description": "Only words."}),
        ],
        "operations": said,
    }
    return Bridge(module_path, "out", plan)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[socket.socket]:
    """Where a schema's document would be fetched, if anybody did."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture(scope="module")
def remote(module_path: Path, elsewhere: socket.socket) -> Bridge:
    """A bridge whose schema points to a document elsewhere."""
    schema = {"$ref": f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"}
    op = operation("list", requires_auth=False, input_schema=schema)
    return Bridge(module_path, "remote", {"definitions": [capability("remote.box", op)]})


@pytest.fixture(scope="module")
def broken(module_path: Path) -> Bridge:
    op = operation("list", requires_auth=False, output_schema={"type": "nonsense"})
    return Bridge(module_path, "broken", {"definitions": [capability("broken.box", op)]})


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], out: Bridge, remote: Bridge, broken: Bridge) -> Desk:
    return desks(out, remote, broken).open()


@whole("SC-PROV-08", "SC-AMB-22", "SC-ERR-07")
def test_an_output_with_a_credentials_name_in_it_is_refused_whole(desk: Desk) -> None:
    person = somebody()
    names = list(leaks())
    answers = desk.asks(person, *(invoking("out.leaks", name) for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert code_of(answer) == BAD_OUTPUT, name
        assert VALUE not in json.dumps(answer), name
        assert "fine" not in error_of(answer)["message"], name
    rows = desk.audit(person, "capability_output_rejected")
    assert len(rows) == len(names)
    assert all(one["path"] for one in rows)
    assert VALUE not in json.dumps(desk.daemon.audit())
    assert VALUE not in desk.daemon.log()


@whole("SC-AMB-22")
@pytest.mark.parametrize("name", list(FINE))
def test_what_only_speaks_of_credentials_passes(desk: Desk, name: str) -> None:
    assert desk.invoke(somebody(), "out.leaks", name) == FINE[name]


@whole("SC-PROV-09", "SC-ERR-05")
@pytest.mark.parametrize(
    "given", [{"folder": 5}, {}, {"folder": None}, {"folder": ["a"]}, [1], "text", 5]
)
def test_an_input_that_does_not_fit_never_reaches_the_provider(
    desk: Desk, out: Bridge, given: Any
) -> None:
    before = len(out.calls())
    error = desk.refusal(somebody(), "invoke", capability="out.box", operation="list", input=given)
    assert error["data"]["code"] == BAD_INPUT
    assert len(out.calls()) == before


@whole("SC-RPC-05", "SC-AMB-25")
def test_a_call_names_a_capability_and_one_of_its_operations(desk: Desk, out: Bridge) -> None:
    person = somebody()
    good = {"capability": "out.box", "operation": "list", "input": {"folder": "a"}}
    tries: list[dict[str, Any]] = [
        {**good, "capability": None},
        {**good, "operation": None},
        {**good, "operation": ""},
        {**good, "operation": 7},
        {**good, "operation": "no_such_op"},
        {**good, "input": [1]},
        {**good, "idempotency_key": 7},
        {key: value for key, value in good.items() if key != "capability"},
        {key: value for key, value in good.items() if key != "operation"},
    ]
    before = len(out.calls())
    answers = desk.asks(person, *({"method": "capability.invoke", "params": one} for one in tries))
    assert [code_of(one) for one in answers] == [BAD_INPUT] * len(tries)
    assert len(out.calls()) == before
    fine, keyed = desk.asks(
        person,
        {"method": "capability.invoke", "params": good},
        {"method": "capability.invoke", "params": {**good, "idempotency_key": "k-1"}},
    )
    assert result_of(fine)["output"]["key"] is None
    assert result_of(keyed)["output"]["key"] == "k-1"
    # Without an input it is an empty one.
    assert desk.invoke(person, "out.box", "free")["input"] == {}


@whole("SC-AMB-21", "SC-AMB-02")
def test_an_output_that_breaks_its_own_schema_is_refused(
    desk: Desk, remote: Bridge, broken: Bridge, elsewhere: socket.socket
) -> None:
    person = somebody()
    assert desk.invoke(person, "out.box", "count") == {"count": 3}
    for name in ("miscount", "textcount"):
        error = desk.refusal(person, "invoke", capability="out.box", operation=name)
        assert error["data"]["code"] == BAD_OUTPUT
        assert VALUE not in json.dumps(error)
    # A schema that cannot be used, or lies elsewhere, is no schema: such a provider is not taken.
    for one in (remote, broken):
        assert desk.code(person, f"{one.name}.box", "list") == "capability_not_found"
        rows = desk.daemon.audit("capability_provider_unavailable")
        [row] = [row["data"] for row in rows if row["data"]["provider"] == one.name]
        assert row["reason"] == BAD_INPUT
        assert "schema" in row["detail"]
    with pytest.raises(BlockingIOError):  # and nobody came to fetch it
        elsewhere.accept()


@whole("SC-PROV-05")
def test_an_operation_with_nothing_but_a_name_needs_an_account_and_changes_nothing(
    desk: Desk,
) -> None:
    person = somebody()
    answers = desk.asks(
        person,
        step("list", include_operations=True),
        invoking("out.plain", "bare", idempotency_key="k"),
        *linking("out.plain", None, 2),
        invoking("out.plain", "bare", input={"any": ["thing"]}, idempotency_key="k"),
        invoking("out.plain", "bare", input={"any": 2}, idempotency_key="k"),
    )
    rows = {one["id"]: one for one in result_of(answers[0])["capabilities"]}
    [shown] = rows["out.plain"]["operation_details"]
    assert shown == {
        "name": "bare",
        "description": "Only words.",
        "requires_auth": True,
        "mutating": False,
        "input_schema": {},
        "output_schema": {},
    }
    assert code_of(answers[1]) == "capability_auth_required"
    # Not a change: the same key with another input is neither a conflict nor a repeat.
    for answer, given in zip(answers[4:], ({"any": ["thing"]}, {"any": 2}), strict=True):
        assert result_of(answer)["output"]["input"] == given
        assert "replayed" not in result_of(answer)


@whole("SC-RPC-06", "SC-AUD-01")
def test_a_call_has_an_id_that_is_on_record_exactly_once(desk: Desk) -> None:
    person = somebody()
    answers = desk.asks(person, *[invoking("out.box", "free")] * 40)
    results = [result_of(one) for one in answers]
    for one in results:
        assert set(one) == {"ok", "output", "request_id"}
        assert one["ok"] is True
        assert isinstance(one["output"], dict)
        assert one["request_id"].startswith("cap_")
    ids = [one["request_id"] for one in results]
    assert len(set(ids)) == 40
    rows = desk.audit(person, "capability_invoke")
    assert [one["request_id"] for one in rows] == ids
    for row in rows:
        assert (row["capability.id"], row["operation"]) == ("out.box", "free")
        assert (row["user_id"], row["outcome"]) == (person.user, "ok")
    # A refused one has its id too.
    error = desk.refusal(person, "invoke", capability="out.box", operation="list")
    last = desk.audit(person, "capability_invoke")[-1]
    assert (last["request_id"], last["error.code"]) == (error["data"]["request_id"], BAD_INPUT)
