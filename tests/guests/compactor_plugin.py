#!/usr/bin/env python3
"""A compactor that answers pre_compact as `behaviour.json` says, with nothing but the json module.

  how    "good" | "no_role" | "observer" | "no_messages" | "malformed" | "no_superseded" |
         "foreign" | "drops_keep" | "error" | "hang" | "exit" | "odd_role"
  log    a file to which every hook request is appended
"""

import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "behaviour.json"), encoding="utf-8") as file:
    B = json.load(file)


def put(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def result_for(how, params):
    being, remaining = params["messages_being_compacted"], params["messages_remaining"]
    kept = list(remaining)
    kept.insert(1, {"id": "sum", "role": "user", "content": f"summary of {len(being)}"})
    result = {
        "role": "compactor",
        "messages": kept,
        "superseded": [one["id"] for one in being],
        "summary": "what was said",
    }
    if how == "no_role":
        del result["role"]
    elif how == "observer":
        result["role"] = "observer"
    elif how == "no_messages":
        del result["messages"]
    elif how == "malformed":
        result["messages"] = [*kept, 5]
    elif how == "odd_role":
        result["messages"] = [*kept, {"role": "narrator", "content": "once"}]
    elif how == "no_superseded":
        del result["superseded"]
    elif how == "foreign":
        result["superseded"] = ["someone-elses"]
    elif how == "drops_keep":
        result["messages"] = kept[2:]
    return result


for line in sys.stdin:
    message = json.loads(line)
    method, request_id, params = message.get("method"), message.get("id"), message.get("params")
    if method == "initialize":
        answer = {"name": B["name"], "version": "1.0.0", "api_version": 1, "methods": [],
                  "notifications": [], "capabilities_used": []}
        put({"jsonrpc": "2.0", "id": request_id, "result": answer})
    elif method == "kaged.hook.pre_compact" and params["role"] == "compactor":
        with open(B["log"], "a", encoding="utf-8") as log:
            log.write(json.dumps(message) + "\n")
        how = B["how"]
        if how == "error":
            put({"jsonrpc": "2.0", "id": request_id, "error": {"code": -32000, "message": "no"}})
        elif how == "hang":
            while True:
                signal.pause()
        elif how == "exit":
            os._exit(3)
        else:
            put({"jsonrpc": "2.0", "id": request_id, "result": result_for(how, params)})
    elif method == "ping":
        put({"jsonrpc": "2.0", "id": request_id, "result": {"status": "ok"}})
    elif method == "config.update":
        put({"jsonrpc": "2.0", "id": request_id, "result": {}})
    elif method == "shutdown":
        put({"jsonrpc": "2.0", "id": request_id, "result": None})
        break
    elif request_id is not None:
        put({"jsonrpc": "2.0", "id": request_id, "result": None})
