#!/usr/bin/env python3
"""A plugin that does what the test tells it to, good or bad, with nothing but the json module.

Its behaviour is the JSON file `behaviour.json` beside it:
  answer        changes to the initialize result (null removes a member)
  before        raw lines written before anything is read
  greet         "silent" | "exit" | "error" | "raw:<line>"
  after_greeting raw lines written right after the initialize answer
  on            {method: [action, ...]} for calls; actions: {"result": x}, {"error": [code, msg]},
                {"raw": line}, {"stderr": text}, {"hang": true}, {"exit": code}, {"close_stdin": true},
                {"ask": [method, params]} (request to the host; its answer becomes the result),
                {"notify": [method, params, count]}, {"env": true}, {"read": path}, {"write": path},
                {"run": argv}, {"connect": [host, port]}, {"noise": text}, {"sigterm_file": path}
  config        "ok" | [code, message] | "late" | "silent" ; default ok
  shutdown      "exit" | "ignore" ; sigterm: "default" | "ignore" | "file:<path>"
Every line it receives is appended to the file named by `log` if that is writable.
"""

import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "behaviour.json"), encoding="utf-8") as file:
    B = json.load(file)
next_id = 0
waiting = {}
held = []


def put(message):
    raw(json.dumps(message))


def raw(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer(request_id, result):
    put({"jsonrpc": "2.0", "id": request_id, "result": result})


def fail(request_id, code, message, data=None):
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    put({"jsonrpc": "2.0", "id": request_id, "error": error})


def ask(method, params):
    global next_id
    next_id += 1
    put({"jsonrpc": "2.0", "id": next_id, "method": method, "params": params})
    while next_id not in waiting:
        message = read()
        if message is None:
            sys.exit(0)
        if "method" in message:
            held.append(message)
        else:
            waiting[message["id"]] = message
    return waiting.pop(next_id)


def read():
    line = sys.stdin.readline()
    if not line:
        return None
    if "log" in B:
        with open(B["log"], "a", encoding="utf-8") as log:
            log.write(line)
    return json.loads(line)


def attempt(work):
    try:
        return work()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def act(request_id, action, params):
    if "result" in action:
        answer(request_id, action["result"])
    elif "echo" in action:
        answer(request_id, params)
    elif "error" in action:
        fail(request_id, *action["error"])
    elif "raw" in action:
        raw(action["raw"].replace("$id", str(request_id)))
    elif "noise" in action:
        raw(action["noise"])
    elif "flood" in action:
        for _ in range(action["flood"][1]):
            raw(action["flood"][0])
    elif "stderr" in action:
        sys.stderr.write(action["stderr"])
        sys.stderr.flush()
    elif "hang" in action:
        while True:
            signal.pause()
    elif "exit" in action:
        os._exit(action["exit"])
    elif "close_stdin" in action:
        os.close(0)
        while True:
            signal.pause()
    elif "ask" in action:
        reply = ask(*action["ask"])
        answer(request_id, reply.get("result", {"error": reply.get("error")}))
    elif "notify" in action:
        method, body, count = action["notify"]
        for _ in range(count):
            put({"jsonrpc": "2.0", "method": method, "params": body})
    elif "env" in action:
        answer(request_id, {"env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()})
    elif "read" in action:
        def work():
            with open(action["read"], encoding="utf-8") as found:
                return {"text": found.read()}
        answer(request_id, attempt(work))
    elif "write" in action:
        def work():
            with open(action["write"], "a", encoding="utf-8") as target:
                target.write("written\n")
            return {"ok": True}
        answer(request_id, attempt(work))
    elif "run" in action:
        def work():
            import subprocess  # a quarter of what starting costs, and few need it

            done = subprocess.run(action["run"], capture_output=True, timeout=10)
            return {"code": done.returncode, "out": done.stdout.decode("utf-8", "replace")}
        answer(request_id, attempt(work))
    elif "connect" in action:
        def work():
            import socket  # see above

            with socket.create_connection(tuple(action["connect"]), timeout=3) as link:
                return {"said": link.recv(100).decode()}
        answer(request_id, attempt(work))


def on_sigterm(number, frame):
    how = B.get("sigterm", "default")
    if how.startswith("file:"):
        with open(how[5:], "w", encoding="utf-8") as file:
            file.write("got it")
        os._exit(0)


if B.get("sigterm", "default") != "default":
    signal.signal(signal.SIGTERM, on_sigterm)
for line in B.get("before", []):
    raw(line)
config_answer = None
initialized = False
while True:
    message = held.pop(0) if held else read()
    if message is None:
        break
    method, request_id, params = message.get("method"), message.get("id"), message.get("params")
    if method == "initialize":
        greet = B.get("greet", "")
        if greet == "silent":
            continue
        if greet == "exit":
            sys.stderr.write("no reason to live\n")
            os._exit(3)
        if greet == "error":
            fail(request_id, -32603, "not today")
            continue
        if greet.startswith("raw:"):
            raw(greet[4:].replace("$id", str(request_id)))
            continue
        result = {
            "name": "stub", "version": "1.0.0", "api_version": 1,
            "methods": ["a.b", "c.d"], "notifications": ["x.y"], "capabilities_used": [],
        }
        result.update(B.get("answer", {}))
        answer(request_id, {key: value for key, value in result.items() if value is not None})
        for line in B.get("after_greeting", []):
            raw(line)
    elif method == "initialized":
        initialized = True
        if config_answer is not None:
            answer(config_answer, {})
    elif method == "ping":
        how = B.get("ping", "ok")
        if how == "ok":
            answer(request_id, {"status": "ok"})
        elif how == "empty":
            put({"jsonrpc": "2.0", "id": request_id})
        elif how == "error":
            fail(request_id, -32603, "unwell")
    elif method == "config.update":
        how = B.get("config", "ok")
        if how == "ok":
            answer(request_id, {})
        elif how == "early":
            if initialized:
                answer(request_id, {})
            else:
                fail(request_id, -32002, "not initialized")
        elif how == "late":
            config_answer = request_id
        elif isinstance(how, list):
            fail(request_id, *how)
    elif method in ("projects.activated", "projects.deactivated"):
        answer(request_id, {})
    elif method == "shutdown":
        if B.get("shutdown", "exit") == "exit":
            sys.exit(0)
    elif method in B.get("on", {}):
        for action in B["on"][method]:
            act(request_id, action, params)
    elif request_id is not None and method is not None:
        fail(request_id, -32601, "Method not found")
