"""A bridge whose plan is a file: what it offers, and what it says to whom.

`BRIDGE_PLAN` names the plan, `BRIDGE_LOG` the file that every request is written to, with the
environment. The plan: `definitions` (the list), `ponder` (seconds until it is told), `begin`, `complete`, `poll`, `revoke` (a result
for every capability; `expires_in` are the seconds that a flow lives, `pause` those that a
completion takes), and `operations`: by name `{"output"}`, `{"error"}`, `{"raw"}` (text, with
`ID` for the request's id), `{"exit"}`, `{"sleep"}` (a file's name: sleeps ten minutes after its
process id was written there), `{"append"}` (a file that the input's `word` is written to),
`{"pause"}` (seconds that it takes), and otherwise an echo of what it was given, with the claims of
the token, whose signature it checks.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def claims(token):
    key = decoded(os.environ["ASH_CONTEXT_TOKEN_SECRET"])
    head, body, signature = token.split(".")
    wanted = hmac.new(key, f"{head}.{body}".encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(wanted, decoded(signature)):
        raise ValueError("signature")
    return json.loads(decoded(body))


def account(given):
    hint = given.get("account_hint") or "default"
    return {"account_ref": f"acct_{hint}", "metadata": {"account_email": f"{hint}@x.example"}}


def invoked(plan, given):
    wanted = plan.get("operations", {}).get(given["operation"], {})
    if "append" in wanted:
        with Path(wanted["append"]).open("a", encoding="utf-8") as ledger:
            ledger.write(given["input_data"]["word"] + "\n")
    time.sleep(wanted.get("pause", 0))
    if "sleep" in wanted:
        Path(wanted["sleep"]).write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(600)
    if "exit" in wanted:
        sys.exit(wanted["exit"])
    if "error" in wanted:
        return {"error": wanted["error"]}
    if "raw" in wanted:
        print(wanted["raw"].replace("ID", request["id"]))
        sys.exit(0)
    if "output" in wanted:
        return {"result": {"output": wanted["output"]}}
    echo = {"account": given["account_ref"], "input": given["input_data"]}
    told = claims(given["context_token"])
    return {"result": {"output": {**echo, "key": given["idempotency_key"], "claims": told}}}


def answer(plan, method, given):
    if method == "definitions":
        time.sleep(plan.get("ponder", 0))
        if "definitions_raw" in plan:
            print(plan["definitions_raw"].replace("ID", request["id"]))
            sys.exit(0)
        return {"result": {"definitions": plan["definitions"]}}
    claims(given["context_token"])
    if method == "auth_begin":
        begun = {"auth_url": "https://login.example/authorize"}
        if "expires_in" in plan:
            moment = datetime.now(UTC) + timedelta(seconds=plan["expires_in"])
            begun["expires_at"] = moment.isoformat() if plan.get("zone") else f"{moment:%FT%T}"
        return {"result": {**begun, **plan.get("begin", {})}}
    if method == "auth_complete":
        time.sleep(plan.get("pause", 0))
        said = plan.get("complete", {})
        return said if "error" in said else {"result": {**account(given), **said}}
    if method == "auth_poll":
        return {"result": plan["poll"]}
    if method == "auth_revoke":
        return {"result": plan.get("revoke", {})}
    return invoked(plan, given)


opened = [n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
request = json.loads(sys.stdin.read())
plan = json.loads(Path(os.environ["BRIDGE_PLAN"]).read_text(encoding="utf-8"))
with Path(os.environ["BRIDGE_LOG"]).open("a", encoding="utf-8") as log:
    noted = {"request": request, "env": dict(os.environ), "argv": sys.argv, "opened": opened}
    log.write(json.dumps({**noted, "pid": os.getpid(), "parent": os.getppid()}) + "\n")
said = answer(plan, request["method"], request["params"])
print(json.dumps({"version": 1, "id": request["id"], **said}))
