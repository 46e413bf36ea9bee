"""What each command of ash-sb asks the host, without a host."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.sandbox import channel, lines
from kaged.sandbox.arguments import COMMANDS, HelpAsked, UsageError, parse
from kaged.sandbox.channel import CommandFailure, HostChannel
from kaged.sandbox.commands import PollTimedOut, Surroundings, run
from kaged.wire import length_prefixed, tokens
from requirements import requirement


class Host:
    """Answers in the order it was told; time moves when somebody sleeps."""

    def __init__(self, *answers: dict[str, Any], stdin: bytes = b"") -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.slept: list[float] = []
        self._answers = list(answers)
        self._now_s = 100.0
        self.around = Surroundings(self._call, lambda limit: stdin[:limit], self._now, self._sleep)

    def run(self, *words: str) -> list[str]:
        command, given_ = parse(words)
        return run(command, given_, self.around)[1]

    def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((method, params))
        return self._answers.pop(0)

    def _now(self) -> float:
        return self._now_s

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now_s += seconds


def test_an_invoke_without_a_key_makes_its_own_so_that_a_retry_acts_once() -> None:
    host = Host({"request_id": "cap_1", "output": {}}, {"request_id": "cap_2", "output": {}})
    words = ("capability", "invoke", "-c", "gog.email", "-o", "send")
    host.run(*words)
    host.run(*words)
    keys = [params["idempotency_key"] for _, params in host.asked]
    assert len(set(keys)) == 2
    assert all(16 < len(key) <= 255 and key.isprintable() for key in keys)


@requirement("SC-AMB-28")
def test_optional_flags_set_the_optional_parameters() -> None:
    host = Host({"capabilities": []}, {"request_id": "cap_1", "output": {}})
    host.run("capability", "list", "--all")
    host.run(
        *("capability", "invoke", "-cgog.email", "--operation=send", "--account", " work "),
        *("--idempotency-key", "k1", "--plan-id", "p1", "--target-fingerprint", "f1"),
    )
    assert host.asked == [
        ("capability.list", {"include_unavailable": True}),
        (
            "capability.invoke",
            {
                "capability": "gog.email",
                "operation": "send",
                "input": {},
                "idempotency_key": "k1",
                "account_ref": "work",
                "mutation_plan_id": "p1",
                "target_fingerprint": "f1",
            },
        ),
    ]


def test_input_can_come_from_standard_input() -> None:
    host = Host({"request_id": "cap_1", "output": {}}, stdin='{"folder": "ä"}'.encode())
    host.run("capability", "invoke", "-c", "a.b", "-o", "x", "--input-json", "-")
    assert host.asked[0][1]["input"] == {"folder": "ä"}


@pytest.mark.parametrize("stdin", [b"\xff", b"[1]", b"{", b'{"a": NaN}'])
def test_bad_standard_input_is_refused_before_any_request(stdin: bytes) -> None:
    host = Host(stdin=stdin)
    with pytest.raises(CommandFailure):
        host.run("capability", "invoke", "-c", "a.b", "-o", "x", "--input-json", "-")
    assert host.asked == []


def test_a_poll_loops_with_the_servers_interval_until_done() -> None:
    host = Host(
        {"status": "pending", "retry_after_seconds": 7},
        {"status": "pending"},
        {"ok": True, "account_ref": "acct_work"},
    )
    shown = host.run("capability", "auth", "poll", "--flow-id", "caf_1", "--timeout", "60")
    assert shown == ["Capability auth completed (flow_id=caf_1, account_ref=acct_work)"]
    assert host.slept == [7, 5]


def test_a_poll_stops_when_the_next_sleep_would_pass_the_deadline() -> None:
    host = Host(*[{"status": "pending", "retry_after_seconds": 3}] * 3)
    with pytest.raises(PollTimedOut, match="timed out"):
        host.run("capability", "auth", "poll", "--flow-id", "caf_1", "--timeout", "8")
    assert host.slept == [3, 3]


def test_the_users_own_interval_wins_and_is_at_least_a_second() -> None:
    host = Host({"status": "pending", "retry_after_seconds": 9}, {"account_ref": "a"})
    host.run(
        *("capability", "auth", "poll", "--flow-id", "caf_1"),
        *("--timeout", "8", "--interval", "0"),
    )
    assert host.slept == [1]


@pytest.mark.parametrize(
    "words",
    [
        "capability invoke -c  -o x",
        "capability auth begin --capability=",
        "capability auth poll --flow-id f --timeout soon",
        "capability auth poll --flow-id f --interval -3",
        "capability auth revoke -c a.b --account=",
    ],
)
def test_blank_and_senseless_values_are_refused_locally(words: str) -> None:
    host = Host()
    with pytest.raises(CommandFailure):
        host.run(*words.split(" "))
    assert host.asked == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("capability invoke", "Missing option '--capability'."),
        ("capability invoke -c a.b", "Missing option '--operation'."),
        ("capability invoke -c", "requires a value"),
        ("capability invoke -x 1", "No such option: -x"),
        ("capability list extra", "No such option"),
        ("capability list --all=yes", "does not take a value"),
        ("capability wreck", "No such command"),
        ("mail", "No such command"),
        ("", ""),
        ("capability", ""),
        ("capability auth", ""),
        ("--loud", "No such option"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong_and_shows_help(words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words.split())
    assert message in caught.value.message
    assert caught.value.shown.startswith("Usage: ash-sb")


def test_every_command_and_group_has_help() -> None:
    groups = {"", "capability", "capability auth"}
    for words in groups | {one.words for one in COMMANDS}:
        with pytest.raises(HelpAsked) as caught:
            parse([*words.split(), "--help"])
        assert words in caught.value.shown


@given(st.lists(st.sampled_from(["capability", "list", "--all", "-c", "-", "--", "=", "invoke"])))
def test_no_command_line_breaks_the_parser(words: list[str]) -> None:
    try:
        parse(words)
    except (UsageError, HelpAsked):
        return


@given(st.text())
def test_text_of_others_never_adds_a_line_or_moves_a_cursor(text: str) -> None:
    row = {"id": "gog.email", "description": text, "operations": [text], "linked_accounts": []}
    shown = lines.capability_lines({"capabilities": [row]})
    assert len(shown) == 6
    assert all(line.isprintable() for line in shown)


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", "1e3", "٣"])
def test_a_port_that_is_none_is_a_local_error(port: str) -> None:
    ask = HostChannel({"ASH_CONTEXT_TOKEN": "t", "ASH_RPC_PORT": port})
    with pytest.raises(CommandFailure, match="ASH_RPC_PORT"):
        ask.call("capability.list", {})


def test_the_guest_speaks_the_hosts_frames_and_names() -> None:
    """The numbers stand twice, so that the guest need not import the wire package."""
    assert channel.FRAME_LIMIT_BYTES == length_prefixed.FRAME_LIMIT_BYTES
    assert channel.PREFIX_BYTES == length_prefixed.PREFIX_BYTES
    assert channel.TOKEN_VARIABLE == tokens.TOKEN_VARIABLE


def test_the_guest_imports_nothing_but_the_standard_library() -> None:
    folder = Path(channel.__file__).parent
    found = set[str]()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    own = {one for one in found if one.partition(".")[0] == "kaged"}
    assert {one for one in own if not one.startswith("kaged.sandbox")} == {"kaged"}
    assert {one.partition(".")[0] for one in found - own} <= sys.stdlib_module_names
