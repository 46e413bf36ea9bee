"""A bound host through the gate, against the plain gate: a request, a connection, much at once.

One server with TLS outside, one client program. The client reaches the server once by the relay
that passes bytes unseen and once by the gate that ends TLS, everything else being equal.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import uvloop

from kaged.base import SystemClock, Tasks
from kaged.cage.gate_port import BoundConnection
from kaged.cage.net.relay import RelayBuffer, RelayResult, SocketRelay
from kaged.credentials.cage_gate import CageGate
from kaged.credentials.credential_gate import CredentialGate
from kaged.credentials.requests import RequestHead, admit
from kaged.kernel.bindings import (
    BEARER,
    CageCredential,
    CageCredentials,
    CredentialBinding,
    Destination,
    SecretValue,
    new_placeholder,
)
from kaged.kernel.request_rules import RequestRule
from scoreboard import Row, at_least, at_most, peer_program, row, show

REQUESTS = 1000
CONNECTIONS = 60
BULK_BYTES = 256 * 1024 * 1024
STREAMS = 200
BINDINGS = 1000
NAME = "bench.test"
MAX_ADDED_MS = 0.5
MAX_FIRST_MS = 4.0
MIN_MB_PER_S = 300.0
MAX_SLOPE = 1.3
HELD = new_placeholder(bytes(20))

SERVER = f"""
const http = require('http'), http2 = require('http2'), fs = require('fs');
const block = require('crypto').randomBytes(262144);
const tls = {{key: fs.readFileSync(process.argv[1]), cert: fs.readFileSync(process.argv[1]),
  allowHTTP1: true}};
const server = http2.createSecureServer(tls, (ask, answer) => {{
  if (ask.url !== '/bulk') {{ answer.end('ok'); return; }}
  answer.setHeader('content-length', {BULK_BYTES});
  let left = {BULK_BYTES};
  const more = () => {{
    while (left > 0) {{ left -= block.length; if (!answer.write(block)) {{
      answer.once('drain', more); return; }} }}
    answer.end();
  }};
  more();
}});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""

CLIENT = f"""
import json, socket, ssl, sys, time
port, ca = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=ca)
context.set_alpn_protocols(["http/1.1"])
ask = b"GET /x HTTP/1.1\\r\\nHost: {NAME}\\r\\nAuthorization: Bearer {HELD}\\r\\n\\r\\n"
def connect():
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(sock, server_hostname="{NAME}")
def once(sock):
    sock.sendall(ask)
    got = b""
    while not got.endswith(b"ok"):
        data = sock.recv(65536)
        assert data
        got += data
def middle(times):
    return sorted(times)[len(times) // 2] * 1000
def kept():
    times = []
    with connect() as sock:
        for _ in range({REQUESTS}):
            begin = time.perf_counter()
            once(sock)
            times.append(time.perf_counter() - begin)
    return middle(times)
def first():
    times = []
    for _ in range({CONNECTIONS}):
        begin = time.perf_counter()
        with connect() as sock:
            once(sock)
        times.append(time.perf_counter() - begin)
    return middle(times)
def bulk():
    with connect() as sock:
        begin = time.perf_counter()
        sock.sendall(ask.replace(b"/x", b"/bulk"))
        got = sock.recv(65536)
        while b"\\r\\n\\r\\n" not in got:
            got += sock.recv(65536)
        left = {BULK_BYTES} - len(got.partition(b"\\r\\n\\r\\n")[2])
        buffer = bytearray(262144)
        while left > 0:
            count = sock.recv_into(buffer)
            assert count
            left -= count
        return {BULK_BYTES} / (time.perf_counter() - begin) / 1e6
print({{"kept": kept, "first": first, "bulk": bulk}}[sys.argv[3]]())
"""

STREAMS_CLIENT = f"""
const http2 = require('http2'), fs = require('fs');
const talk = http2.connect('https://127.0.0.1:' + process.argv[1], {{
  ca: fs.readFileSync(process.argv[2]), servername: '{NAME}'}});
const ask = () => new Promise((done, failed) => {{
  const one = talk.request({{':path': '/x', ':authority': '{NAME}',
    authorization: 'Bearer {HELD}'}});
  let got = '';
  one.on('data', data => got += data); one.on('error', failed);
  one.on('end', () => got === 'ok' ? done() : failed(new Error(got))); one.end();
}});
(async () => {{
  await ask();
  const begin = performance.now();
  for (let turn = 0; turn < 5; turn++)
    await Promise.all(Array.from({{length: {STREAMS}}}, ask));
  console.log((performance.now() - begin) / (5 * {STREAMS}));
  talk.close();
}})();
"""


async def _value(_name: str) -> SecretValue:
    return SecretValue("the-value-of-the-benchmark")


def _cage(ca_file: str, count: int = 1) -> CageCredentials:
    rules = (RequestRule(("GET",), "/**"),)
    held = [
        CageCredential(
            CredentialBinding(
                f"name{number}",
                (Destination(NAME if number == 0 else f"host{number}.test"),),
                (BEARER,),
                rules,
                ca_file=ca_file,
            ),
            new_placeholder(number.to_bytes(20, "big")),
        )
        for number in range(count)
    ]
    return CageCredentials(held)


class Measured(NamedTuple):
    """What a client measured, and the processor time that the gate's process took for it."""

    figure: float
    cpu_s: float


class _Listener:
    """Where the client connects to; passes connections on by the relay or by the gate."""

    def __init__(self, server_port: int, gate: CageGate | None) -> None:
        self._server_port = server_port
        self._gate = gate
        self._buffer = RelayBuffer()
        self._tasks = Tasks("bench")
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._sock.setblocking(False)
        self.port = int(self._sock.getsockname()[1])
        self._tasks.start(self._accept(), "accept")

    async def close(self) -> None:
        await self._tasks.close()
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._sock)
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tasks.start(self._serve(client), "serve")

    async def _serve(self, client: socket.socket) -> None:
        server = await self._dial()
        if self._gate is not None:
            await self._gate.serve(BoundConnection(client, b"", server, NAME, 443, self._dial))
            return
        ended = asyncio.Event()

        def on_end(_relay: SocketRelay, _result: RelayResult) -> None:
            ended.set()

        SocketRelay(client, server, self._buffer, half_closed_s=60.0, on_end=on_end).start()
        await ended.wait()

    async def _dial(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._server_port))
        return sock


async def _run(*words: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, words, stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout


async def _measure(
    node: str, server_port: int, ca: str, gate: CageGate | None
) -> dict[str, Measured]:
    listener = _Listener(server_port, gate)
    told: dict[str, Measured] = {}
    try:
        await _run(sys.executable, "-c", CLIENT, str(listener.port), ca, "first")
        for phase in ("kept", "first", "bulk"):
            begin = time.process_time()
            said = await _run(sys.executable, "-c", CLIENT, str(listener.port), ca, phase)
            told[phase] = Measured(float(said), time.process_time() - begin)
        begin = time.process_time()
        said = await _run(node, "-e", STREAMS_CLIENT, str(listener.port), ca)
        told["streams"] = Measured(float(said), time.process_time() - begin)
    finally:
        await listener.close()
    return told


def _admit_us(count: int) -> float:
    held = _cage("", count)
    head = RequestHead(
        b"GET",
        b"/repos/acme/x",
        NAME.encode(),
        [(b"authorization", f"Bearer {HELD}".encode()), (b"accept", b"*/*")],
    )
    best = float("inf")
    for _ in range(7):
        begin = time.process_time()
        for _ in range(1000):
            admit(held, NAME, 443, head, tls=True).filled_in("x")
        best = min(best, time.process_time() - begin)
    return best * 1000


def run() -> list[Row]:
    """Measure; returns one row per figure."""
    node = peer_program("node", "node")
    with tempfile.TemporaryDirectory() as folder:
        chain, ca = _certificates(Path(folder))
        with subprocess.Popen([node, "-e", SERVER, str(chain)], stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    plain = runner.run(_measure(node, port, str(ca), None))
                    gate = CredentialGate(lambda _: None, SystemClock()).open(
                        _cage(str(ca)), _value, "bench"
                    )
                    inside = Path(folder) / "cage.pem"
                    inside.write_text(gate.authority_pem, encoding="ascii")
                    bound = runner.run(_measure(node, port, str(inside), gate))
            finally:
                server.kill()
    one, many = _admit_us(1), _admit_us(BINDINGS)
    added = _added_ms(bound, plain, "kept", REQUESTS)
    first_added = _added_ms(bound, plain, "first", CONNECTIONS)
    streams_added = _added_ms(bound, plain, "streams", 5 * STREAMS + 1)
    return [
        # The clock says what a program feels, the processor what the gate does; beside others on
        # the machine only the second is steady.
        _clock_row("request on a kept connection to a bound host", bound, plain, "kept"),
        row(
            "the same, processor time added by the gate",
            added,
            "ms",
            target=at_most(MAX_ADDED_MS, added, "ms"),
        ),
        _clock_row("first request on a new connection, certificate made", bound, plain, "first"),
        row(
            "the same, processor time added by the gate",
            first_added,
            "ms",
            target=at_most(MAX_FIRST_MS, first_added, "ms"),
        ),
        row(
            "bulk from a bound host, by the gate's processor time",
            BULK_BYTES / bound["bulk"].cpu_s / 1e6,
            "MB/s",
            against="the plain gate",
            peer=BULK_BYTES / plain["bulk"].cpu_s / 1e6,
            target=at_least(MIN_MB_PER_S, BULK_BYTES / bound["bulk"].cpu_s / 1e6, "MB/s"),
        ),
        _clock_row(f"request among {STREAMS} streams at once", bound, plain, "streams"),
        row("the same, processor time added by the gate", streams_added, "ms"),
        row(
            f"deciding a request in a cage with {BINDINGS} bindings",
            many,
            "us",
            against="a cage with one",
            peer=one,
            target=at_most(MAX_SLOPE, many / one, "x"),
        ),
    ]


def _clock_row(name: str, bound: dict[str, Measured], plain: dict[str, Measured], key: str) -> Row:
    ours, theirs = bound[key].figure, plain[key].figure
    return row(name, ours, "ms", against="the plain gate", peer=theirs)


def _added_ms(
    bound: dict[str, Measured], plain: dict[str, Measured], key: str, count: int
) -> float:
    return (bound[key].cpu_s - plain[key].cpu_s) / count * 1000


def _certificates(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that is its own authority; returns the file with the key, and without."""
    chain, ca = folder / "server.pem", folder / "outside.pem"
    key = folder / "key.pem"
    words = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-days", "2")
    subprocess.run(
        ("openssl", *words, *names, "-keyout", str(key), "-out", str(ca)),
        check=True,
        capture_output=True,
    )
    chain.write_bytes(ca.read_bytes() + key.read_bytes())
    return chain, ca


if __name__ == "__main__":
    show(run())
