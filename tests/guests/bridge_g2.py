"""A bridge of the second generation: device codes, expected states, several requests per process."""

import base64
import hashlib
import hmac
import json
import os
import sys
from pathlib import Path


def claims(token):
    secret = os.environ["ASH_CONTEXT_TOKEN_SECRET"]
    secret = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    head, body, signature = token.split(".")
    wanted = hmac.new(secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(
        wanted, base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    ):
        raise ValueError("signature")
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


def definitions(namespace):
    operations = {
        "whoami": {"name": "whoami", "description": "Say whose account it is."},
        "ping": {"name": "ping", "description": "Say hello.", "requires_auth": False},
        "send": {"name": "send", "description": "Send a message.", "mutating": True},
    }
    names = ("email", "devices")
    return {
        "definitions": [
            {"id": f"{namespace}.{name}", "description": "Things.", "operations": operations}
            for name in names
        ],
        "features": ["persistent"],
    }


def answer(request):
    method, params = request["method"], request["params"]
    if method == "definitions":
        return definitions(request["namespace"])
    who = claims(params["context_token"])
    if method == "auth_begin":
        if params["capability_id"].endswith(".devices"):
            return {
                "auth_url": "https://login.example/device",
                "flow_type": "device_code",
                "user_code": "ABCD-EFGH",
                "poll_interval_seconds": 2,
                "flow_state": {"device": "d1", "user": who["sub"]},
            }
        return {
            "auth_url": "https://login.example/authorize",
            "expected_callback_state": f"state-{who['sub']}",
            "flow_state": {"user": who["sub"]},
        }
    if method == "auth_complete":
        if params["authorization_code"] == "denied":
            raise PermissionError("no")
        hint = params["account_hint"] or "default"
        return {"account_ref": f"acct_{hint}", "credential_material": {"credential_key": "k1"}}
    if method == "auth_poll":
        ready = Path(os.environ["BRIDGE_READY"])
        if not ready.exists():
            return {"status": "pending", "retry_after_seconds": 3}
        return {"status": "complete", "account_ref": "acct_device"}
    if method == "auth_revoke":
        return {}
    if method == "invoke":
        return {"user": who["sub"], "account": params["account_ref"], "pid": os.getpid()}
    raise LookupError(method)


for line in sys.stdin:
    request = json.loads(line)
    if "BRIDGE_LOG" in os.environ:
        with Path(os.environ["BRIDGE_LOG"]).open("a") as log:
            log.write(json.dumps(request) + "\n")
    reply = {"version": 1, "id": request["id"]}
    try:
        reply["result"] = answer(request)
    except PermissionError as error:
        reply["error"] = {"code": "capability_auth_flow_denied", "message": str(error)}
    except (LookupError, ValueError) as error:
        reply["error"] = {"code": "capability_invalid_input", "message": str(error)}
    print(json.dumps(reply), flush=True)
