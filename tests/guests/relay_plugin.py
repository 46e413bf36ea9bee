#!/usr/bin/env python3
"""A plugin that asks the host whatever a test tells it to, with nothing but the json module.

  relay.ask      {ask, given}: asks the host; the result is its whole answer
  relay.together {requests: [[method, params], ...]}: sends all before it reads any answer
  relay.files    {below}: the names of the files that it can see below a folder
Its name and version come from the environment and from `version.txt` beside it.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "version.txt"), encoding="utf-8") as file:
    VERSION = file.read().strip()
METHODS = ["relay.ask", "relay.together", "relay.files"]
last = 0
held = []


def put(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def together(requests):
    global last
    first = last + 1
    for method, params in requests:
        last += 1
        put({"id": last, "method": method, "params": params})
    wanted = {number: None for number in range(first, last + 1)}
    while None in wanted.values():
        message = read()
        if "method" in message:
            held.append(message)
        else:
            answer = {key: message[key] for key in ("result", "error") if key in message}
            wanted[message["id"]] = answer
    return [wanted[number] for number in sorted(wanted)]


def files(below):
    found = []
    for folder, _, names in os.walk(below):
        found += [os.path.join(folder, name) for name in names]
    return sorted(found)[:5000]


while True:
    message = held.pop(0) if held else read()
    method, number, params = message.get("method"), message.get("id"), message.get("params")
    if method == "initialize":
        result = {
            "name": os.environ["KAGED_PLUGIN_NAME"], "version": VERSION, "api_version": 1,
            "methods": METHODS, "notifications": [], "capabilities_used": [],
        }
        with open("/tmp/initialize", "w", encoding="utf-8") as file:
            json.dump(params, file)
        put({"id": number, "result": result})
    elif method == "shutdown":
        sys.exit(0)
    elif method == "ping":
        put({"id": number, "result": {"status": "ok"}})
    elif method == "relay.ask":
        put({"id": number, "result": together([[params["ask"], params.get("given", {})]])[0]})
    elif method == "relay.together":
        put({"id": number, "result": together(params["requests"])})
    elif method == "relay.files":
        with open("/tmp/initialize", encoding="utf-8") as file:
            told = json.load(file)
        put({"id": number, "result": {"files": files(params["below"]), "told": told}})
    elif number is not None:
        put({"id": number, "result": {}})
