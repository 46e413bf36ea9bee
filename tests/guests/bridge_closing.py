"""A bridge that stays for many requests; the operation `close` shuts its standard output instead of
answering, and `leave` ends it."""

import json
import os
import sys

for line in sys.stdin:
    request = json.loads(line)
    reply = {"version": 1, "id": request["id"]}
    if request["method"] == "definitions":
        names = ("pid", "close", "leave")
        listed = [{"name": n, "description": "Something.", "requires_auth": False} for n in names]
        offered = {"id": f"{request['namespace']}.do", "description": "Do.", "operations": listed}
        reply["result"] = {"definitions": [offered], "features": ["persistent"]}
    elif request["params"]["operation"] == "close":
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    elif request["params"]["operation"] == "leave":
        os._exit(0)
    else:
        reply["result"] = {"output": {"pid": os.getpid()}}
    print(json.dumps(reply), flush=True)
