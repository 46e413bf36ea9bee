"""A bound host and the gate of a cage before it, on loopback: what reaches the host is recorded."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kaged.base import SystemClock, Tasks
from kaged.cage.gate_port import BoundConnection, BoundResult
from kaged.credentials.cage_gate import CageGate
from kaged.credentials.credential_gate import CredentialGate
from kaged.credentials.events import RequestEvent
from kaged.kernel.bindings import (
    CageCredential,
    CageCredentials,
    NoValue,
    SecretValue,
    new_placeholder,
)

VALUE = "tok/en+Va1ue-Zq93kLw0xYt"


@dataclass
class Seen:
    """One request as the server has it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    complete: bool = False

    def header(self, name: str) -> str | None:
        """Return the first header of this name."""
        return next((value for one, value in self.headers if one == name), None)


@dataclass
class Answer:
    """What the server says. With `chunks`, it sends those and no length."""

    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b"ok"
    chunks: list[bytes] | None = None
    trailers: list[tuple[str, str]] = field(default_factory=list)
    hang_up: bool = False


class Authorities:
    """An authority of the world outside, and servers' certificates of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outside")])
        self._cert = self._build(name, name, self._key, ca=True)
        self.file = folder / "outside.pem"
        self.file.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def server(self, *names: str, protocols: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
        """Return what a server of these names serves TLS with."""
        file = self.files(*names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.set_alpn_protocols(list(protocols))
        return context

    def files(self, *names: str) -> Path:
        """Return a file with the key and certificate of a server of these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        cert = self._build(subject, self._cert.subject, key, ca=False, names=names)
        file = self.folder / f"{names[0]}.pem"
        file.write_bytes(
            cert.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return file

    def _build(
        self,
        subject: x509.Name,
        issuer: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool,
        names: tuple[str, ...] = (),
    ) -> x509.Certificate:
        now = dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if ca:
            builder = builder.add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        if names:
            alternatives = [
                x509.IPAddress(ipaddress.ip_address(one)) if one[0].isdigit() else x509.DNSName(one)
                for one in names
            ]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


Handler = Callable[[Seen], Answer]


class Recorder:
    """A server of HTTP/1.1 that records what reaches it, and answers as it is told."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.seen: list[Seen] = []
        self.raw = bytearray()
        self.connections = 0
        self.handler = handler or (lambda _: Answer())
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Take no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._requests(reader, writer)
        except (OSError, h11.RemoteProtocolError):
            pass
        finally:
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = h11.Connection(h11.SERVER)
        seen: Seen | None = None
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                self.raw += data
                protocol.receive_data(data)
                continue
            if isinstance(event, h11.Request):
                seen = Seen(
                    event.method.decode(),
                    event.target.decode(),
                    [(n.decode(), v.decode("latin-1")) for n, v in event.headers],
                )
                self.seen.append(seen)
            elif isinstance(event, h11.Data) and seen is not None:
                seen.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and seen is not None:
                seen.complete = True
                if not await self._answer(protocol, writer, seen):
                    return
                protocol.start_next_cycle()
            else:
                return

    async def _answer(
        self, protocol: h11.Connection, writer: asyncio.StreamWriter, seen: Seen
    ) -> bool:
        answer = self.handler(seen)
        headers = list(answer.headers)
        if answer.chunks is None and answer.status >= 200:
            headers.append(("content-length", str(len(answer.body))))
        elif answer.chunks is not None:
            headers.append(("transfer-encoding", "chunked"))
        response = h11.Response(status_code=answer.status, headers=headers)
        writer.write(protocol.send(response) or b"")
        for chunk in answer.chunks if answer.chunks is not None else [answer.body]:
            writer.write(protocol.send(h11.Data(data=chunk)) or b"")
            await writer.drain()
        if answer.hang_up:
            writer.transport.abort()
            return False
        writer.write(protocol.send(h11.EndOfMessage(headers=answer.trailers)) or b"")
        await writer.drain()
        return protocol.our_state is h11.DONE and protocol.their_state is h11.DONE


class BoundWorld:
    """The gate of one cage, listening where the network gate would hand it connections."""

    def __init__(
        self,
        credentials: CageCredentials,
        server_port: int,
        value_of: Callable[[str], Awaitable[SecretValue | NoValue]],
    ) -> None:
        self.events: list[RequestEvent] = []
        self.results: list[BoundResult] = []
        self.ended = asyncio.Event()
        self.credentials = credentials
        self.gate: CageGate = CredentialGate(self.events.append, SystemClock()).open(
            credentials, value_of, "agent:test"
        )
        self.server_port = server_port
        self.host = "api.test"
        self.port = 443
        self.dials = 0
        self._listening: socket.socket | None = None
        self._tasks = Tasks("bound-world")
        self.address: tuple[str, int] = ("127.0.0.1", 0)

    async def start(self) -> None:
        """Listen where programs of the cage connect to."""
        sock = socket.create_server(("127.0.0.1", 0), backlog=256)
        sock.setblocking(False)
        self._listening = sock
        self.address = ("127.0.0.1", int(sock.getsockname()[1]))
        self._tasks.start(self._accept(sock), "accept")

    async def _accept(self, sock: socket.socket) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(sock)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tasks.start(self._serve(client), "serve")

    async def _serve(self, client: socket.socket) -> None:
        try:
            server = await self._dial()
        except OSError:
            client.close()
            return
        result = await self.gate.serve(
            BoundConnection(client, b"", server, self.host, self.port, self._dial)
        )
        self.results.append(result)
        self.ended.set()

    async def _dial(self) -> socket.socket:
        self.dials += 1
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.server_port))
        except OSError:
            sock.close()
            raise
        return sock

    def client_context(self, *protocols: str) -> ssl.SSLContext:
        """Return what a program of the cage trusts."""
        context = ssl.create_default_context(cadata=self.gate.authority_pem)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    async def connect(
        self, *, name: str = "api.test", protocols: tuple[str, ...] = ("http/1.1",)
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as a program of the cage, with TLS."""
        return await asyncio.open_connection(
            *self.address, ssl=self.client_context(*protocols), server_hostname=name
        )

    async def send(self, raw: bytes) -> bytes:
        """Send bytes as they are on a connection of their own; return all that came back."""
        reader, writer = await self.connect()
        writer.write(raw)
        try:
            async with asyncio.timeout(10):
                await writer.drain()
                return await reader.read()
        except OSError:
            return b""
        finally:
            writer.transport.abort()

    async def close(self) -> None:
        """End everything."""
        await self._tasks.close()
        if self._listening is not None:
            self._listening.close()
        self.gate.close()


def placeholder(number: int) -> str:
    """Return a placeholder that is the same in each run."""
    return new_placeholder(bytes([number]) * 20)


async def the_value(_name: str) -> SecretValue:
    """Return the value of every credential."""
    return SecretValue(VALUE)


@asynccontextmanager
async def bound_world(
    *held: CageCredential,
    server_port: int,
    value_of: Callable[[str], Awaitable[SecretValue | NoValue]] = the_value,
) -> AsyncGenerator[BoundWorld]:
    """Open the gate of a cage that holds these credentials."""
    world = BoundWorld(CageCredentials(held), server_port, value_of)
    await world.start()
    try:
        yield world
    finally:
        await world.close()
