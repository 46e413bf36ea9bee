"""Hands messages to a language server and back, and writes down what the server is sent.

    lsp_relay.py LOG.jsonl COMMAND ...

One JSON message per line. When the server ends, so does this.
"""

import os
import subprocess
import sys
import threading

LOG, COMMAND = sys.argv[1], sys.argv[2:]


def read(stream):
    """Return a whole message: its head and its body, or None at the end."""
    head, length = b"", 0
    while True:
        line = stream.readline()
        if not line:
            return None
        head += line
        if line == b"\r\n":
            return head, stream.read(length)
        name, _, value = line.decode("ascii").partition(":")
        if name.lower() == "content-length":
            length = int(value)


def back(server):
    while data := server.stdout.read1(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    os._exit(server.wait())


started = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
threading.Thread(target=back, args=(started,), daemon=True).start()
while received := read(sys.stdin.buffer):
    with open(LOG, "ab") as file:
        file.write(b" ".join(received[1].splitlines()) + b"\n")
    started.stdin.write(b"".join(received))
    started.stdin.flush()
started.stdin.close()
started.wait()
