"""A complete bridge: three ways to link an account, renewal, revocation, errors.

    HARBOUR_URL=https://harbour.example HARBOUR_STATE=/srv/harbour python3 bridge.py

`harbour.log` is linked with a callback, `harbour.crane` by polling, `harbour.locker` with a token
that a person types into a page of the host. Tokens of the first two are kept below HARBOUR_STATE;
the host keeps the third and hands it over with each call.
"""

import hashlib
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from kaged.sdk.bridge import Bridge, BridgeCall, BridgeError, InvalidInput, NotLinked

SERVICE = os.environ["HARBOUR_URL"].rstrip("/")
STATE = Path(os.environ["HARBOUR_STATE"])
TIMEOUT_S = 20
READ: dict[str, Any] = {
    "type": "object",
    "properties": {"limit": {"type": "integer", "minimum": 1}},
}

bridge = Bridge(persistent=True)
log = bridge.capability("harbour.log", "The log of the harbour.", sensitive=True)
crane = bridge.capability("harbour.crane", "What the cranes do.", sensitive=True)
locker = bridge.capability("harbour.locker", "A person's locker.", sensitive=True)


# -- the service ---------------------------------------------------------------------------------


def ask(path: str, form: dict[str, str] | None = None, token: str = "") -> dict[str, Any]:
    """Ask the service; its refusals become the errors that a host understands."""
    body = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(f"{SERVICE}{path}", data=body)  # noqa: S310 - the operator's
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise NotLinked from None
        if error.code == 403:
            raise BridgeError("capability_access_denied", "the harbour denies this") from None
        if error.code == 400:
            raise InvalidInput("the harbour does not accept this") from None
        raise BridgeError("capability_backend_unavailable", "the harbour failed") from None
    except OSError:
        raise BridgeError("capability_backend_unavailable", "the harbour is away") from None


# -- what the bridge keeps, apart for each person, capability and account ------------------------


def place(call: BridgeCall, account_ref: str) -> Path:
    key = json.dumps([call.user_id, call.capability_id, account_ref])
    return STATE / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def keep(file: Path, tokens: dict[str, Any]) -> None:
    beside = file.with_suffix(f".{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(tokens, opened)
    beside.replace(file)


def link(call: BridgeCall, tokens: dict[str, Any]) -> dict[str, Any]:
    account_ref = f"acct_{call.params.get('account_hint') or tokens['name']}"
    keep(place(call, account_ref), tokens)
    return {"account_ref": account_ref, "metadata": {"account_name": tokens["name"]}}


# -- a callback ----------------------------------------------------------------------------------


@log.auth_begin
def begin_log(call: BridgeCall) -> dict[str, Any]:
    state = os.urandom(16).hex()
    query = urllib.parse.urlencode({"state": state, "response_type": "code"})
    return {"auth_url": f"{SERVICE}/agree?{query}", "expected_callback_state": state}


@log.auth_complete
def complete_log(call: BridgeCall) -> dict[str, Any]:
    return link(call, ask("/token", {"grant_type": "authorization_code", "code": call.code or ""}))


# -- polling -------------------------------------------------------------------------------------


@crane.auth_begin
def begin_crane(call: BridgeCall) -> dict[str, Any]:
    begun = ask("/device", {})
    return {
        "auth_url": begun["verification_uri"],
        "flow_type": "device_code",
        "user_code": begun["user_code"],
        "poll_interval_seconds": begun["interval"],
        "flow_state": {"device_code": begun["device_code"]},
    }


@crane.auth_poll
def poll_crane(call: BridgeCall) -> dict[str, Any]:
    code = call.params["flow_state"]["device_code"]
    found = ask("/token", {"grant_type": "device_code", "device_code": code})
    if "error" in found:
        return {"status": "pending", "retry_after_seconds": 1}
    return {"status": "complete", **link(call, found)}


# -- fields --------------------------------------------------------------------------------------


@locker.auth_begin
def begin_locker(call: BridgeCall) -> dict[str, Any]:
    return {
        "fields": [
            {"name": "berth", "label": "Berth"},
            {"name": "pass", "label": "Locker token", "secret": True},
        ]
    }


@locker.auth_submit
def submit_locker(call: BridgeCall) -> dict[str, Any]:
    values = call.params["values"]
    try:
        found = ask("/entries", token=values["pass"])
    except NotLinked:
        raise InvalidInput("The harbour does not know this token.") from None
    return {"account_ref": f"acct_{values['berth'] or found['name']}"}


# -- use -----------------------------------------------------------------------------------------


@log.operation("list", "List what was written down.", input_schema=READ)
@crane.operation("list", "List what the cranes did.", input_schema=READ)
def list_entries(call: BridgeCall) -> dict[str, Any]:
    file = place(call, call.account_ref or "")
    if not file.exists():
        raise NotLinked
    tokens = json.loads(file.read_text(encoding="utf-8"))
    try:
        found = ask("/entries", token=tokens["access_token"])
    except NotLinked:  # it is too old: renew it, once
        form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        tokens = ask("/token", form)
        keep(file, tokens)
        found = ask("/entries", token=tokens["access_token"])
    return {"entries": found["entries"][: call.input.get("limit")]}


@locker.operation("list", "List what is in the locker.", input_schema=READ)
def list_locker(call: BridgeCall) -> dict[str, Any]:
    if "pass" not in call.credentials:
        raise NotLinked
    found = ask("/entries", token=call.credentials["pass"])
    return {"entries": found["entries"][: call.input.get("limit")]}


@log.auth_revoke
@crane.auth_revoke
def revoke(call: BridgeCall) -> dict[str, Any]:
    file = place(call, str(call.params.get("account_ref")))
    if file.exists():
        tokens = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        ask("/revoke", {"token": tokens["refresh_token"]})
    return {}


@locker.auth_revoke
def revoke_locker(call: BridgeCall) -> dict[str, Any]:
    ask("/revoke", {"token": str(call.credentials.get("pass"))})
    return {}


raise SystemExit(bridge.run())
