"""What each command does: options in, one request (a poll may ask more often), lines out."""

from __future__ import annotations

import json
import os

from kaged.sandbox import lines
from kaged.sandbox.channel import CommandFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from kaged.sandbox.arguments import Given

    Answer: TypeAlias = tuple[dict[str, Any], list[str]]

DEFAULT_POLL_S = 5
MIN_POLL_S = 1
INPUT_LIMIT_BYTES = 9 * 1024 * 1024
_HINT = {"account": "account_hint"}
_FILTER = {"capability": "capability", **_HINT}


class Surroundings:
    """What commands need from outside: the host, standard input, and time for polling."""

    __slots__ = ("call", "now_s", "read_input", "sleep")

    def __init__(
        self,
        call: Callable[[str, dict[str, Any]], dict[str, Any]],
        read_input: Callable[[int], bytes],
        now_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.call = call
        self.read_input = read_input
        self.now_s = now_s
        self.sleep = sleep


def run(words: str, given: Given, around: Surroundings) -> Answer:
    """Carry out one command; return the raw result and the lines that show it.

    Raises:
        CommandFailure: the options are not usable, or the host said no.
    """
    return _RUNNERS[words](given, around)


def _list(given: Given, around: Surroundings) -> Answer:
    result = around.call("capability.list", {"include_unavailable": "all" in given})
    return result, lines.capability_lines(result)


def _describe(given: Given, around: Surroundings) -> Answer:
    # Not at the top: the other commands start faster without it.
    from kaged.sandbox.describing import described_lines, narrowed  # noqa: PLC0415 - see above

    wanted, operation = _text(given, "capability"), _text(given, "operation")
    result = around.call("capability.list", {"include_operations": True})
    rows = result.get("capabilities")
    found = [
        narrowed(row, operation)
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and wanted in {"", row.get("id")}
    ]
    found = [row for row in found if row["operations"]] if operation else found
    if not found and (wanted or operation):
        raise CommandFailure(
            f"no such operation can be used here: {wanted} {operation}".rstrip(), "not_found"
        )
    return {"capabilities": found}, described_lines(found)


def _invoke(given: Given, around: Surroundings) -> Answer:
    capability = _needed(given, "capability")
    operation = _needed(given, "operation")
    params: dict[str, Any] = {
        "capability": capability,
        "operation": operation,
        "input": _input(given, around),
        # So that sending a request again after a lost connection never acts twice.
        "idempotency_key": _text(given, "idempotency-key") or f"ash-{os.urandom(16).hex()}",
    }
    params |= _named(
        given,
        {
            "account": "account_ref",
            "plan-id": "mutation_plan_id",
            "target-fingerprint": "target_fingerprint",
        },
    )
    result = around.call("capability.invoke", params)
    return result, lines.invoked_lines(result, capability, operation)


def _auth_begin(given: Given, around: Surroundings) -> Answer:
    params = {"capability": _needed(given, "capability"), **_named(given, _HINT)}
    result = around.call("capability.auth.begin", params)
    return result, lines.begun_lines(result)


def _auth_list(given: Given, around: Surroundings) -> Answer:
    result = around.call("capability.auth.list", _named(given, _FILTER))
    return result, lines.pending_lines(result)


def _auth_complete(given: Given, around: Surroundings) -> Answer:
    flow_id = _needed(given, "flow-id")
    params = {"flow_id": flow_id, **_answer_of_user(given)}
    result = around.call("capability.auth.complete", params)
    return result, [lines.completed_line(result, flow_id)]


def _auth_complete_callback(given: Given, around: Surroundings) -> Answer:
    params = {**_answer_of_user(given), **_named(given, _FILTER)}
    result = around.call("capability.auth.complete_callback", params)
    flow_id = lines.text(result, "flow_id")
    return result, [lines.completed_line(result, flow_id, capability=True)]


def _auth_poll(given: Given, around: Surroundings) -> Answer:
    flow_id = _needed(given, "flow-id")
    timeout_s = _seconds(given, "timeout", least=0)
    interval_s = _seconds(given, "interval", least=MIN_POLL_S)
    deadline_s = None if timeout_s is None else around.now_s() + timeout_s
    while True:
        result = around.call("capability.auth.poll", {"flow_id": flow_id})
        if result.get("status") != "pending":
            return result, [lines.completed_line(result, flow_id)]
        wait_s = interval_s or max(_whole(result.get("retry_after_seconds")), MIN_POLL_S)
        if deadline_s is None:
            shown = f"flow_id={lines.one_line(flow_id)}, retry_after={wait_s}s"
            return result, [f"Auth flow pending ({shown})"]
        if around.now_s() + wait_s > deadline_s:
            raise PollTimedOut(f"Auth flow timed out (flow_id={lines.one_line(flow_id)})")
        around.sleep(wait_s)


class PollTimedOut(CommandFailure):
    """The user did not agree in time; shown as it is, without `Error:`."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "timeout")


def _auth_cancel(given: Given, around: Surroundings) -> Answer:
    flow_id = _needed(given, "flow-id")
    result = around.call("capability.auth.cancel", {"flow_id": flow_id})
    return result, [f"Auth flow canceled (flow_id={lines.one_line(flow_id)})"]


def _auth_revoke(given: Given, around: Surroundings) -> Answer:
    capability = _needed(given, "capability")
    params = {"capability": capability, "account_ref": _needed(given, "account")}
    result = around.call("capability.auth.revoke", params)
    return result, [lines.revoked_line(result, capability)]


def _answer_of_user(given: Given) -> dict[str, Any]:
    found = _named(given, {"callback-url": "callback_url", "code": "code"})
    if not found:
        raise CommandFailure("one of --callback-url and --code is needed", "invalid_input")
    return found


def _input(given: Given, around: Surroundings) -> dict[str, Any]:
    written = given.get("input-json", "")
    if written.strip() == "-":
        raw = around.read_input(INPUT_LIMIT_BYTES + 1)
        if len(raw) > INPUT_LIMIT_BYTES:
            raise CommandFailure("standard input is too long for --input-json", "invalid_input")
        try:
            written = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CommandFailure("standard input is not UTF-8", "invalid_input") from error
    if not written.strip():
        return {}
    try:
        value = json.loads(written, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CommandFailure(f"--input-json is not valid JSON: {error}", "invalid_input") from error
    if not isinstance(value, dict):
        raise CommandFailure("--input-json must be a JSON object", "invalid_input")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _needed(given: Given, option: str) -> str:
    value = _text(given, option)
    if not value:
        raise CommandFailure(f"--{option} must not be blank", "invalid_input")
    return value


def _text(given: Given, option: str) -> str:
    return given.get(option, "").strip()


def _named(given: Given, names: dict[str, str]) -> dict[str, Any]:
    """Return the options that were given, under the names of their parameters."""
    return {name: value for option, name in names.items() if (value := _text(given, option))}


def _seconds(given: Given, option: str, *, least: int) -> int | None:
    if option not in given:
        return None
    written = given[option].strip()
    if not (written.isascii() and written.isdigit() and len(written) <= 6):
        raise CommandFailure(f"--{option} must be a whole number of seconds", "invalid_input")
    return max(int(written), least)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return DEFAULT_POLL_S
    return int(value)


_RUNNERS: dict[str, Callable[[Given, Surroundings], Answer]] = {
    "capability list": _list,
    "capability describe": _describe,
    "capability invoke": _invoke,
    "capability auth begin": _auth_begin,
    "capability auth list": _auth_list,
    "capability auth complete": _auth_complete,
    "capability auth complete-callback": _auth_complete_callback,
    "capability auth poll": _auth_poll,
    "capability auth cancel": _auth_cancel,
    "capability auth revoke": _auth_revoke,
}
