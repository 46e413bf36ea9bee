"""A bridge that notes words in a file: what it did can be counted."""

import json
import os
import sys
import time
from pathlib import Path

request = json.loads(sys.stdin.read())
reply = {"version": 1, "id": request["id"]}
if request["method"] == "definitions":
    time.sleep(float(os.environ.get("SLOW_S", "0")))
    note = {"name": "note", "description": "Note a word.", "mutating": True, "requires_auth": False}
    read = {"name": "read", "description": "Read.", "mutating": False, "requires_auth": False}
    book = {"id": f"{request['namespace']}.book", "description": "A ledger."}
    reply["result"] = {"definitions": [{**book, "operations": [note, read]}]}
else:
    if request["params"]["operation"] == "note":
        with Path(os.environ["LEDGER"]).open("a") as ledger:
            ledger.write(request["params"]["input_data"]["word"] + "\n")
    reply["result"] = {"output": {"done": True}}
print(json.dumps(reply))
