"""A bridge that stays and answers one request after the other: some never, some when told to."""

import base64
import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["BRIDGE_FOLDER"])
NAMES = ("ping", "hang", "wait", "crash")


def subject(token):
    body = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["sub"]


def answer(request):
    if request["method"] == "definitions":
        listed = [
            {"name": name, "description": "Does it.", "requires_auth": False} for name in NAMES
        ]
        offered = {"id": f"{request['namespace']}.box", "description": "Box.", "operations": listed}
        return {"definitions": [offered], "features": ["persistent"]}
    params = request["params"]
    user, name = subject(params["context_token"]), params["operation"]
    with (FOLDER / "calls.log").open("a") as log:
        log.write(json.dumps({"user": user, "operation": name, "pid": os.getpid()}) + "\n")
    if name == "crash":
        os._exit(3)
    while name == "hang" or (name == "wait" and not (FOLDER / f"{user}.go").exists()):
        time.sleep(0.05)
    return {"output": {"user": user, "pid": os.getpid()}}


for line in sys.stdin:
    request = json.loads(line)
    said = {"version": 1, "id": request["id"], "result": answer(request)}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
