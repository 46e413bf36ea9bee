"""A debug adapter that does what a plan says; used to see what the bridge sends and survives.

    fake_dap_adapter.py PLAN.json LOG.jsonl

The plan is read again for every message:

    capabilities    what `initialize` answers
    answers         command → {"body": …} | {"error": text} | "hang" | "die"
    events          command → events that are sent after its answer
    before          command → messages (events, reverse requests) that are sent before its answer
    late_launch     answer launch only after configurationDone
    no_initialized  never send `initialized`
    stay            do not end when the input ends
    together        write an answer and the events after it in one piece
"""

import json
import os
import signal
import sys
import time

PLAN, LOG = sys.argv[1:3]
WAITING = []
TOGETHER = None
SEQ = 0


def plan():
    with open(PLAN, encoding="utf-8") as file:
        return json.load(file)


def log(message):
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(message) + "\n")


def read():
    length = None
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        if line == b"\r\n":
            break
        name, _, value = line.decode("ascii").partition(":")
        if name.lower() == "content-length":
            length = int(value)
    return json.loads(sys.stdin.buffer.read(length))


def send(message):
    global SEQ
    SEQ += 1
    body = json.dumps({"seq": SEQ, **message}).encode()
    data = b"Content-Length: %d\r\n\r\n" % len(body) + body
    if TOGETHER is not None:
        TOGETHER.append(data)
        return
    # In two writes, so that the reader sees a message in pieces.
    sys.stdout.buffer.write(data[:25])
    sys.stdout.buffer.flush()
    sys.stdout.buffer.write(data[25:])
    sys.stdout.buffer.flush()


def event(name, body=None):
    send({"type": "event", "event": name, "body": body or {}})


def respond(request, body=None, error=None):
    message = {
        "type": "response",
        "request_seq": request["seq"],
        "command": request["command"],
        "success": error is None,
        "body": body or {},
    }
    if error is not None:
        message["message"] = error
    send(message)


def default(request):
    command, arguments = request["command"], request.get("arguments") or {}
    if command in {"setBreakpoints", "setInstructionBreakpoints", "setDataBreakpoints"}:
        asked = arguments.get("breakpoints", [])
        return {
            "breakpoints": [
                {"id": 100 + number, "verified": True, "line": one.get("line", 0)}
                for number, one in enumerate(asked)
            ]
        }
    if command == "threads":
        return {"threads": [{"id": 7, "name": "main"}]}
    return {}


def handle(request, now):
    command = request["command"]
    for one in now.get("before", {}).get(command, []):
        send(one)
    what = now.get("answers", {}).get(command)
    if what == "hang":
        return
    if what == "die":
        os._exit(9)
    if command in {"launch", "attach"} and now.get("late_launch"):
        WAITING.append(request)
        event("initialized")
        return
    if isinstance(what, dict) and "error" in what:
        respond(request, error=what["error"])
        return
    respond(request, what["body"] if isinstance(what, dict) else None or (
        now.get("capabilities", {}) if command == "initialize" else default(request)
    ))
    if command in {"launch", "attach"} and not now.get("no_initialized"):
        event("initialized")
    if command == "configurationDone":
        for one in WAITING:
            respond(one)
        WAITING.clear()
    for one in now.get("events", {}).get(command, []):
        event(one["event"], one.get("body"))
    if command == "disconnect" and not now.get("stay"):
        sys.exit(0)


if plan().get("stay"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    received = read()
    if received is None:
        while plan().get("stay"):
            time.sleep(0.05)
        break
    log(received)
    if received["type"] == "request":
        now = plan()
        TOGETHER = [] if now.get("together") else None
        handle(received, now)
        if TOGETHER is not None:
            sys.stdout.buffer.write(b"".join(TOGETHER))
            sys.stdout.buffer.flush()
            TOGETHER = None
