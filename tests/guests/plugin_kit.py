"""What a test's own plugin program is made of: the standard library, and the wire by hand.

The test writes `main.py`, which begins with `from kit import *`. Each line that arrives is put
into the file that the variable DIARY names, byte for byte, before anything is done about it.
"""

import json
import os
import sys
import threading
import time

NAME = os.environ.get("KAGED_PLUGIN_NAME", "")
DIARY = os.environ.get("DIARY", "")
METHODS = os.environ.get("METHODS", "a.b,c.d").split(",")
_lock = threading.Lock()
held = []


def write_down(data):
    if DIARY:
        with open(DIARY, "ab") as diary:
            diary.write(data)


def receive():
    """Return the next message, or end when there is none."""
    if held:
        return held.pop(0)
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    write_down(line)
    return json.loads(line)


def raw(data):
    """Write bytes to the host, as they are."""
    with _lock:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def put(message):
    raw(json.dumps(message).encode() + b"\n")


def answer(message, result):
    put({"jsonrpc": "2.0", "id": message["id"], "result": result})


def fail(message, code, text, **data):
    error = {"code": code, "message": text, **data}
    put({"jsonrpc": "2.0", "id": message["id"], "error": error})


def notify(kind, params=None):
    put({"jsonrpc": "2.0", "method": kind, "params": params or {}})


def ask(number, method, params):
    """Send a request and return the whole answer; other messages are held back until then."""
    put({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    return await_answer(number)


def await_answer(number):
    kept = []
    while True:
        message = receive()
        if "method" not in message and message.get("id") == number:
            held[:0] = kept
            return message
        kept.append(message)


def hello(**changes):
    """Return a right answer to initialize, changed."""
    result = {
        "name": NAME,
        "version": "1.0.0",
        "api_version": 1,
        "methods": METHODS,
        "notifications": ["x.y"],
        "capabilities_used": [],
    }
    result.update(changes)
    return {key: value for key, value in result.items() if value is not None}


def greet(**changes):
    """Take initialize and answer it; returns the request."""
    request = receive()
    answer(request, hello(**changes))
    return request


def serve(on=None):
    """Answer everything that a good plugin answers; `on` is called with other requests."""
    while True:
        message = receive()
        method = message.get("method")
        if method == "ping":
            answer(message, {"status": "ok"})
        elif method == "shutdown":
            os._exit(0)
        elif method in ("config.update", "projects.activated", "projects.deactivated"):
            if "id" in message:
                answer(message, {})
        elif method is not None and "id" in message and on is not None:
            on(message)
