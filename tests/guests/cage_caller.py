"""A program in a cage that speaks with the host itself, where `ash-sb` would be too polite.

Its first argument is a file with a job: `{"conversations": [[step, …], …]}`. Every conversation is
one connection, all at the same time. A step is `{"method", "params"}` (the token of the cage is
attached unless the step has `token`; `forge` changes it), or `{"raw": base64}` for a frame of any bytes, or
`{"length": n}` for nothing but the beginning of a frame. `{"$": [step, "name"]}` anywhere in params
stands for what an earlier step's result holds. It prints the answers, null where the connection
had been closed.
"""

import base64
import hmac
import json
import os
import socket
import sys
import threading


def exactly(connection, count):
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def filled(value, answers):
    if isinstance(value, dict):
        if set(value) == {"$"}:
            step, name = value["$"]
            return answers[step]["result"][name]
        return {key: filled(inner, answers) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, answers) for inner in value]
    return value


def forged(how):
    """Change the cage's own token: `{"flip": segment}` one character of a segment, or `{"header",
    "claims", "key"}` members of it, signed with the key; without a key there is no signature."""
    parts = os.environ["ASH_CONTEXT_TOKEN"].split(".")
    if "flip" in how:
        text = parts[how["flip"]]
        parts[how["flip"]] = text[:5] + ("A" if text[5] != "A" else "B") + text[6:]
        return ".".join(parts)
    signed = []
    for text, name in zip(parts, ("header", "claims"), strict=False):
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        found.update(how.get(name, {}))
        found = {key: value for key, value in found.items() if value != "absent"}
        signed.append(segment(json.dumps(found).encode()))
    body = ".".join(signed)
    if "key" not in how:
        return body + "."
    return f"{body}.{segment(hmac.new(how['key'].encode(), body.encode(), 'sha256').digest())}"


def segment(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def frame_of(step, number, answers):
    if "raw" in step:
        return base64.b64decode(step["raw"])
    params = filled(step.get("params", {}), answers)
    own = forged(step["forge"]) if "forge" in step else os.environ.get("ASH_CONTEXT_TOKEN")
    token = step.get("token", own)
    if token != "absent":
        params["context_token"] = token
    request = {"jsonrpc": "2.0", "id": number, "method": step["method"], "params": params}
    return json.dumps(request).encode()


def converse(steps, answers):
    where = (os.environ["ASH_RPC_HOST"], int(os.environ["ASH_RPC_PORT"]))
    with socket.create_connection(where, timeout=60) as connection:
        for number, step in enumerate(steps):
            try:
                if "length" in step:
                    connection.sendall(step["length"].to_bytes(4, "big"))
                else:
                    frame = frame_of(step, number, answers)
                    connection.sendall(len(frame).to_bytes(4, "big") + frame)
                if step.get("silent"):
                    continue
                length = int.from_bytes(exactly(connection, 4), "big")
                answers.append(json.loads(exactly(connection, length)))
            except (EOFError, ConnectionError):
                answers.append(None)


with open(sys.argv[1], encoding="utf-8") as file:
    job = json.load(file)
everything = [[] for _ in job["conversations"]]
threads = [
    threading.Thread(target=converse, args=pair)
    for pair in zip(job["conversations"], everything, strict=True)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(everything))
