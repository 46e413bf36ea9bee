"""A bridge of the first generation: stand-alone, reads stdin to its end, knows code and callback_url."""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from pathlib import Path


def key():
    text = os.environ["ASH_CONTEXT_TOKEN_SECRET"].strip()
    if len(text) % 2 == 0 and all(c in "0123456789abcdefABCDEF" for c in text):
        return bytes.fromhex(text)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return text.encode()


def claims(token):
    head, body, signature = token.split(".")
    wanted = hmac.new(key(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    given = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    if not hmac.compare_digest(wanted, given):
        raise ValueError("signature")
    found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if found["exp"] < time.time() - 30:
        raise ValueError("expired")
    return found


def definitions():
    folder = {
        "type": "object",
        "required": ["folder"],
        "properties": {"folder": {"type": "string"}},
    }
    operations = [
        {"name": "list_messages", "description": "List messages.", "input_schema": folder},
        {"name": "whoami", "description": "Say whose account it is."},
        {"name": "ping", "description": "Say hello.", "requires_auth": False},
        {"name": "send", "description": "Send a message.", "mutating": True},
    ]
    return {
        "definitions": [
            {
                "id": f"{NAMESPACE}.email",
                "description": "Email operations.",
                "sensitive": os.environ.get("BRIDGE_SENSITIVE") == "1",
                "operations": operations,
            }
        ]
    }


def answer(method, params):
    if method == "definitions":
        return definitions()
    who = claims(params["context_token"])
    if method == "auth_begin":
        return {"auth_url": "https://login.example/authorize", "flow_state": {"n": 1}}
    if method == "auth_complete":
        if not params.get("code") and not params.get("callback_url"):
            raise LookupError("code")
        hint = params.get("account_hint") or "default"
        return {"account_ref": f"acct_{hint}", "metadata": {"account_email": f"{hint}@x.example"}}
    if method == "invoke":
        return {
            "output": {"user": who["sub"], "account": params["account_ref"], "messages": []}
        }
    raise LookupError(method)


request = json.loads(sys.stdin.read())
NAMESPACE = request["namespace"]
if "BRIDGE_LOG" in os.environ:
    with Path(os.environ["BRIDGE_LOG"]).open("a") as log:
        log.write(json.dumps({"request": request, "env": dict(os.environ)}) + "\n")
reply = {"version": 1, "id": request["id"]}
try:
    reply["result"] = answer(request["method"], request["params"])
except LookupError as error:
    reply["error"] = {"code": "capability_invalid_input", "message": f"not here: {error}"}
except ValueError as error:
    reply["error"] = {"code": "capability_access_denied", "message": f"token: {error}"}
print(json.dumps(reply))
