"""The planned adapter of `fake_dap_adapter`, behind a socket instead of standard streams.

    fake_listening_adapter.py listen PORT_OR_PATH PLAN.json LOG.jsonl
    fake_listening_adapter.py call HOST:PORT PLAN.json LOG.jsonl

It prints noise first, as such adapters do. With `stranger` in the plan, somebody else's process
calls first.
"""

import json
import os
import runpy
import socket
import sys
from pathlib import Path

how, where, plan, log = sys.argv[1:5]
asked = json.loads(Path(plan).read_text("utf-8"))
print("adapter listening somewhere", flush=True)
if asked.get("absent"):
    sys.exit("I will not listen")
if how == "call":
    host, _, port = where.rpartition(":")
    if asked.get("stranger"):
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            try:
                with socket.create_connection((host, int(port))) as other:
                    other.sendall(b"Content-Length: 2\r\n\r\n{}")
                    heard = other.recv(100)
            except OSError:
                heard = b""
            print("stranger heard", heard, file=sys.stderr, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
    link = socket.create_connection((host, int(port)))
else:
    server = socket.socket(socket.AF_INET if where.isdigit() else socket.AF_UNIX)
    server.bind(("127.0.0.1", int(where)) if where.isdigit() else where)
    server.listen()
    link, _ = server.accept()
os.dup2(link.fileno(), 0)
if asked.get("prints"):
    os.write(1, asked["prints"].encode())
os.dup2(link.fileno(), 1)
sys.argv[1:] = [plan, log]
runpy.run_path(str(Path(__file__).with_name("fake_dap_adapter.py")), run_name="__main__")
