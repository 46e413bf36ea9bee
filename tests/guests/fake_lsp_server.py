"""A language server that does what a plan says; used to see what the bridge sends and survives.

    fake_lsp_server.py PLAN.json LOG.jsonl

The plan is read again for every message, so that a test can change it while the server runs:

    capabilities   what `initialize` answers
    answers        method → {"result": …} | {"error": {…}} | "hang" | "die" | "garbage" | "flood"
    before         method → messages that are sent before the answer
    on_initialized messages that are sent after `initialized`
    publish        None | "versioned" | "unversioned" | "stale" | "told": push diagnostics for open
                   files; "told": as gopls does, with its looks for problems as a progress
    when           path → messages that are sent as soon as there is a file at that path
    ignore_exit    stay after `exit`
    die_at_start   end before the first answer

Diagnostics are one error per line that contains ERR and one warning per line that contains WARN;
a line `USES x` is an error too while no open file has a line `DEF x`.
Everything that is received goes to the log, one JSON message per line.
"""

import json
import os
import sys
import threading
import time

PLAN, LOG = sys.argv[1:3]
OPEN = {}
PUSHED = {}
LOOKS = []


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
    body = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode()
    sys.stdout.buffer.write(b"X-Extra: yes\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    sys.stdout.buffer.flush()


def send_when(path, messages):
    while not os.path.exists(path):
        time.sleep(0.02)
    for one in messages:
        send(one)


def problems(text):
    found = []
    for number, line in enumerate(text.splitlines()):
        for word, severity in (("ERR", 1), ("WARN", 2)):
            column = line.find(word)
            if column >= 0:
                units = len(line[:column].encode("utf-16-le")) // 2
                found.append(
                    {
                        "range": {
                            "start": {"line": number, "character": units},
                            "end": {"line": number, "character": units + len(word)},
                        },
                        "severity": severity,
                        "message": f"{word} on line {number + 1}",
                        "code": 17 if word == "ERR" else "w1",
                        "source": "fake",
                    }
                )
        if line.startswith("USES ") and line.replace("USES", "DEF") not in defined():
            where = {"line": number, "character": 0}
            found.append({"range": {"start": where, "end": where}, "severity": 1, "message": line})
    return found


def defined():
    return {line for _, text in OPEN.values() for line in text.splitlines()}


def look(kind):
    """Begin to look for problems: the file is checked at once, all others only later."""
    LOOKS.append(f"look {len(LOOKS)}")
    value = {"kind": "begin", "title": f"diagnosing {kind} files"}
    send({"method": "$/progress", "params": {"token": LOOKS[-1], "value": value}})


def end_looks():
    """Push what is not as it was, as a server that is slow to find out, and end all looks."""
    time.sleep(0.3)
    for uri, (version, text) in OPEN.items():
        push(uri, version, text)
    for token in LOOKS:
        send({"method": "$/progress", "params": {"token": token, "value": {"kind": "end"}}})
    LOOKS.clear()


def push(uri, version, text):
    items = problems(text)
    if PUSHED.get(uri) != items:
        PUSHED[uri] = items
        send_diagnostics(uri, version, items)


def publish(uri, how):
    version, text = OPEN[uri]
    if how == "told":
        look("changed")
        push(uri, version, text)
        return
    if how == "stale":
        # As a well-known server does: an empty list for the version before, then the real one.
        send_diagnostics(uri, version - 1, [])
    send_diagnostics(uri, None if how == "unversioned" else version, problems(text))


def send_diagnostics(uri, version, items):
    params = {"uri": uri, "diagnostics": items}
    if version is not None:
        params["version"] = version
    send({"method": "textDocument/publishDiagnostics", "params": params})


def notified(message, now):
    method, params = message["method"], message.get("params") or {}
    if method == "exit" and not now.get("ignore_exit"):
        sys.exit(0)
    if method == "initialized":
        for one in now.get("on_initialized", []):
            send(one)
    document = params.get("textDocument", {})
    if method == "textDocument/didOpen":
        OPEN[document["uri"]] = (document["version"], document["text"])
    elif method == "textDocument/didChange":
        OPEN[document["uri"]] = (document["version"], params["contentChanges"][-1]["text"])
    elif method == "textDocument/didClose":
        OPEN.pop(document["uri"], None)
        return
    if document and now.get("publish"):
        publish(document["uri"], now["publish"])


def answer(message, now):
    method = message["method"]
    if method == "initialize" and now.get("die_at_start"):
        sys.exit(3)
    for one in now.get("before", {}).get(method, []):
        send(one)
    what = now.get("answers", {}).get(method)
    if what == "die":
        os._exit(9)
    if what == "hang":
        return
    if what == "garbage":
        sys.stdout.buffer.write(b"this is no message at all\r\n\r\n")
        sys.stdout.buffer.flush()
        return
    if what == "flood":
        sys.stderr.write("x" * 1_000_000 + "\n")
        sys.stderr.flush()
        what = {"result": None}
    if isinstance(what, dict) and "sleep_s" in what:
        time.sleep(what["sleep_s"])
    if isinstance(what, dict) and "error" in what:
        send({"id": message["id"], "error": what["error"]})
    elif isinstance(what, dict):
        send({"id": message["id"], "result": what.get("result")})
    elif method == "initialize":
        info = {"name": now.get("name", "fake"), "version": "1"}
        result = {"capabilities": now.get("capabilities", {}), "serverInfo": info}
        send({"id": message["id"], "result": result})
    elif method == "textDocument/diagnostic":
        _, text = OPEN[message["params"]["textDocument"]["uri"]]
        send({"id": message["id"], "result": {"kind": "full", "items": problems(text)}})
    elif method == "shutdown":
        send({"id": message["id"], "result": None})
    else:
        error = {"code": -32601, "message": "method not found"}
        send({"id": message["id"], "error": error})
    if LOOKS:
        end_looks()


for path, messages in plan().get("when", {}).items():
    threading.Thread(target=send_when, args=(path, messages), daemon=True).start()
while True:
    received = read()
    if received is None:
        break
    log(received)
    current = plan()
    if "method" not in received:
        continue
    if "id" in received:
        answer(received, current)
    else:
        notified(received, current)
