"""What a bridge may answer: one strict envelope; everything else fails closed, and says nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from requirements.marker import whole
from whole.harness.daemon import exactly, wait_for
from whole.harness.services import (
    Bridge,
    Desk,
    capability,
    code_of,
    error_of,
    invoking,
    operation,
    provider_toml,
    result_of,
    somebody,
)

BAD = "capability_invalid_output"
DOWN = "capability_backend_unavailable"
MARKER = "MARKER-xxxxxxxx"
API = 'description = "An API"\n[operations.ping]\ndescription = "Hello."\npath = "/ping"\n'

RAW: dict[str, str] = {
    "messages": '{"version":1,"id":"ID","result":{"messages":[]}}',
    "offline": '{"version":1,"id":"ID","error":{"code":"capability_backend_unavailable",'
    '"message":"bridge offline"}}',
    "own_code": '{"version":1,"id":"ID","error":{"code":"capability_of_our_own","message":"so"}}',
    "long_code": '{"version":1,"id":"ID","error":{"code":"capability_%s","message":"m"}}'
    % ("x" * 64),
    "upper_code": '{"version":1,"id":"ID","error":{"code":"capability_Nope","message":"m"}}',
    "version_one_float": '{"version":1.0,"id":"ID","result":{}}',
    "blanks": ' \n\t {"version":1,"id":"ID","result":{"fine":true}} \n\n',
    "half": '{"version":1,"id":"ID","result":{',
    "trailing": '{"version":1,"id":"ID","result":{}} and more',
    "empty_line": "\n",
}


@pytest.fixture(scope="module")
def rogue(module_path: Path) -> Bridge:
    return Bridge(module_path, "rogue", program="bridge_rogue.py", timeout_seconds=20)


@pytest.fixture(scope="module")
def raw(module_path: Path) -> Bridge:
    ops = [operation(name, requires_auth=False) for name in RAW]
    plan = {
        "definitions": [capability("raw.do", *ops)],
        "operations": {name: {"raw": text} for name, text in RAW.items()},
    }
    return Bridge(module_path, "raw", plan)


@pytest.fixture(scope="module")
def hasty(module_path: Path) -> Bridge:
    return Bridge(module_path, "hasty", program="bridge_rogue.py", timeout_seconds=1)


@pytest.fixture(scope="module")
def staying(module_path: Path) -> Bridge:
    return Bridge(module_path, "staying", program="bridge_closing.py", mode="persistent")


@pytest.fixture(scope="module")
def desk(
    desks: Callable[..., Desk], rogue: Bridge, raw: Bridge, hasty: Bridge, staying: Bridge
) -> Desk:
    settings = {"description": "api.toml", "base_url": "http://127.0.0.1:9", "auth": "none"}
    more = provider_toml("api", type="rest", settings=settings)
    more += provider_toml("absent", command=["/nowhere/at/all", "bridge"])
    made = desks(rogue, raw, hasty, staying, more=more)
    made.daemon.write("api.toml", API)
    return made.open()


@whole("SC-BRG-03", "SC-BRG-04")
def test_a_result_is_the_output_and_an_error_keeps_its_code_and_its_words(desk: Desk) -> None:
    fine, offline, own = desk.asks(
        somebody(), *(invoking("raw.do", name) for name in ("messages", "offline", "own_code"))
    )
    assert result_of(fine)["output"] == {"messages": []}
    assert code_of(offline) == DOWN
    assert error_of(offline)["message"] == f"{DOWN}: bridge offline"
    assert code_of(own) == "capability_of_our_own"


VIOLATIONS = {
    "SC-BRG-05": ("version_2", "version_text", "version_float", "version_null", "version_absent"),
    "SC-BRG-06": ("other_id", "no_id", "numeric_id"),
    "SC-BRG-07": ("both", "neither"),
    "SC-BRG-08": ("result_list", "result_string", "result_number", "result_true", "result_null"),
    "SC-BRG-09": (
        *("error_string", "error_no_code", "error_empty_code", "error_no_message"),
        *("error_empty_message", "error_numeric_code"),
    ),
    "SC-AMB-16": ("version_true",),
    "SC-AMB-15": ("two_values",),
    "SC-AMB-13": ("not_json", "array", "bad_utf8", "nan", "duplicate_key", "deep", "nothing"),
}


@pytest.mark.parametrize(
    "names", [pytest.param(names, marks=whole(row)) for row, names in VIOLATIONS.items()]
)
@whole("SC-BRG-10", "SC-ERR-07")
def test_an_answer_that_breaks_the_envelope_is_refused_whole(
    desk: Desk, names: tuple[str, ...]
) -> None:
    person = somebody()
    answers = desk.asks(person, *(invoking("rogue.do", name) for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert code_of(answer) == BAD, name
    assert MARKER not in json.dumps(answers)
    rows = desk.audit(person, "capability_invoke")
    assert [(one["outcome"], one["error.code"]) for one in rows] == [("error", BAD)] * len(names)
    assert MARKER not in json.dumps(desk.daemon.audit())


@whole("SC-AMB-16", "SC-AMB-15")
def test_the_version_is_the_whole_number_one_and_blanks_and_further_keys_do_no_harm(
    desk: Desk,
) -> None:
    answers = desk.asks(
        somebody(),
        invoking("rogue.do", "extra_key"),
        invoking("rogue.do", "noise"),
        invoking("raw.do", "blanks"),
        invoking("raw.do", "version_one_float"),
        invoking("raw.do", "trailing"),
        invoking("raw.do", "half"),
        invoking("raw.do", "empty_line"),
    )
    assert [result_of(one)["output"] for one in answers[:3]] == [{"fine": True}] * 3
    assert [code_of(one) for one in answers[3:]] == [BAD] * 4


@whole("SC-AMB-13", "SC-PROV-12", "SC-ERR-06", "SC-ERR-08")
@pytest.mark.parametrize(
    ("id_", "name", "code"),
    [
        ("absent.thing", "ping", DOWN),
        ("api.api", "ping", DOWN),
        ("rogue.do", "exit_3", DOWN),
        ("rogue.do", "exit_3_valid", DOWN),
        ("rogue.do", "crash", DOWN),
        ("staying.do", "close", DOWN),
        ("staying.do", "leave", DOWN),
        ("rogue.do", "flood", BAD),
    ],
)
def test_a_process_that_fails_is_down_and_one_that_talks_nonsense_is_refused(
    desk: Desk, id_: str, name: str, code: str
) -> None:
    """Down wins: what a process wrote that then failed is not looked at."""
    first, second = desk.asks(
        somebody(), invoking(id_, name, idempotency_key="a"), invoking("rogue.do", "fine")
    )
    assert code_of(first) == code
    assert result_of(second)["output"] == {"fine": True}  # the next one is not harmed


@whole("SC-AMB-14")
def test_codes_and_words_of_a_bridge_are_cut_to_what_may_travel(desk: Desk) -> None:
    person = somebody()
    quota, denied, long, too_long, upper = desk.asks(
        person,
        invoking("rogue.do", "quota"),
        invoking("rogue.do", "denied"),
        invoking("rogue.do", "long_error"),
        invoking("raw.do", "long_code"),
        invoking("raw.do", "upper_code"),
    )
    assert code_of(quota) == DOWN
    assert code_of(denied) == "capability_auth_flow_denied"
    text = error_of(long)["message"].removeprefix(f"{DOWN}: ")
    assert "\n" not in text
    assert 0 < len(text) <= 300
    assert code_of(too_long) == code_of(upper) == DOWN
    rows = desk.audit(person, "capability_invoke")
    assert [one.get("bridge.error_code") for one in rows][:2] == ["quota", None]
    assert rows[4]["bridge.error_code"] == "capability_Nope"


@whole("SC-SEC-08")
def test_neither_a_failure_nor_a_success_carries_the_bridges_key_out(
    desk: Desk, raw: Bridge
) -> None:
    person = somebody()
    answers = desk.asks(
        person,
        *(
            invoking("rogue.do", name)
            for name in ("secret_error", "leak_key", "leak_token", "secret_stderr", "env")
        ),
    )
    assert code_of(answers[0]) == DOWN
    assert [code_of(one) for one in answers[1:3]] == [BAD, BAD]
    assert result_of(answers[3])["output"] == {"fine": True}
    desk.invoke(person, "raw.do", "messages")
    key = raw.log("invoke")[-1]["env"]["ASH_CONTEXT_TOKEN_SECRET"]
    assert len(key) == 43
    said = json.dumps(answers)
    assert "Bearer abcdef" not in said
    # The rogue's own key is not known here; what it said about it is masked everywhere.
    log = wait_for(lambda: desk.daemon.log() if "the key is" in desk.daemon.log() else "")
    [line] = [one for one in log.splitlines() if "the key is" in one]
    shown = line.partition("the key is")[2].split()[0].strip("'\"\\,}n")
    assert len(shown) < 43, line


def running(pid: int) -> bool:
    """Return whether a process is there and does something."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@whole("SC-BRG-16", "SC-AMB-13")
@pytest.mark.parametrize("name", ["sleep", "stubborn", "grandchild", "deserter"])
def test_a_bridge_that_does_not_answer_in_time_is_ended_with_all_that_it_started(
    desk: Desk, module_path: Path, name: str
) -> None:
    file = module_path / f"{name}.pid"
    person = somebody()
    answer, after = desk.asks(
        person,
        invoking("hasty.do", name, input={"pid_file": str(file)}),
        invoking("rogue.do", "fine"),
    )
    assert code_of(answer) == DOWN
    pid = int(file.read_text(encoding="utf-8"))
    wait_for(lambda: not running(pid), f"end of {name}")
    assert result_of(after)["ok"] is True
    [row] = [one for one in desk.audit(person, "capability_invoke") if one["operation"] == name]
    assert row["outcome"] == "error"


@whole("SC-AMB-15")
def test_every_request_has_a_process_of_its_own_unless_a_bridge_offers_to_stay(
    desk: Desk, raw: Bridge
) -> None:
    person = somebody()
    before = len(raw.calls())
    desk.asks(person, *[invoking("raw.do", "messages")] * 12)
    mine = exactly(before + 12, raw.calls)[before:]
    assert len({one["pid"] for one in mine}) == 12
    wait_for(lambda: not any(running(one["pid"]) for one in mine))
    assert all(one["parent"] != os.getpid() for one in mine)
    stays = desk.asks(person, *[invoking("staying.do", "pid")] * 5)
    assert len({result_of(one)["output"]["pid"] for one in stays}) == 1
