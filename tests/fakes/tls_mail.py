"""Mail servers with certificates of every kind, on loopback, that remember what they were told."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Speaks = Literal["imap", "smtp"]
Line = Literal["tls", "starttls", "stripped", "refused"]

FROM = datetime(2020, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2021, 1, 1, tzinfo=UTC)
FAR_AWAY = datetime(2099, 1, 1, tzinfo=UTC)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def save(self, folder: Path, name: str) -> Path:
        """Write both into one file."""
        private = self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = folder / f"{name}.pem"
        path.write_bytes(private + self.certificate.public_bytes(serialization.Encoding.PEM))
        return path


def make_ca(name: str) -> Signed:
    """Make an authority of one's own."""
    return _sign(name, None, x509.BasicConstraints(ca=True, path_length=0), (), FAR_AWAY)


def make_certificate(
    ca: Signed | None, host: str = "localhost", *, until: datetime = FAR_AWAY
) -> Signed:
    """Make a server's certificate; without `ca` it vouches for itself."""
    name: x509.GeneralName = x509.DNSName(host)
    with contextlib.suppress(ValueError):
        name = x509.IPAddress(ipaddress.ip_address(host))
    return _sign(host, ca, x509.BasicConstraints(ca=False, path_length=None), (name,), until)


def _sign(
    name: str,
    ca: Signed | None,
    basic: x509.BasicConstraints,
    names: tuple[x509.GeneralName, ...],
    until: datetime,
) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(until)
        .add_extension(basic, critical=True)
    )
    signer = key if ca is None else ca.key
    # What RFC 5280 wants of both, and Python from 3.13 on.
    known = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(known, critical=False).add_extension(by, critical=False)
    if basic.ca:
        made = made.add_extension(_SIGNS_CERTIFICATES, critical=True)
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Signed(made.sign(signer, hashes.SHA256()), key)


@dataclass
class MailServer:
    """Speaks just enough IMAP or SMTP to take a login; `plain` is what it heard unprotected."""

    speaks: Speaks
    line: Line
    pem: Path
    plain: bytearray = field(default_factory=bytearray)
    hidden: bytearray = field(default_factory=bytearray)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.pem)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(20)
            # A client that does not like the certificate hangs up in the middle of the handshake.
            with connection, contextlib.suppress(OSError):
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        if self.line == "tls":
            with self._context.wrap_socket(connection, server_side=True) as hidden:
                self._greet(hidden)
                self._answer(hidden, secure=True)
            return
        self._greet(connection)
        if self._answer(connection, secure=False):
            with self._context.wrap_socket(connection, server_side=True) as hidden:
                self._answer(hidden, secure=True)

    def _greet(self, connection: socket.socket) -> None:
        connection.sendall(b"* OK ready\r\n" if self.speaks == "imap" else b"220 ready\r\n")

    def _answer(self, connection: socket.socket, *, secure: bool) -> bool:
        """Answer until the client goes; True when it is time for TLS."""
        speak = self._imap if self.speaks == "imap" else self._smtp
        for line in self._lines(connection, secure=secure):
            connection.sendall(speak(line, secure=secure))
            if b"STARTTLS" in line.upper() and self.line == "starttls":
                return True
        return False

    def _lines(self, connection: socket.socket, *, secure: bool) -> Iterator[bytes]:
        heard = self.hidden if secure else self.plain
        rest = b""
        while data := connection.recv(4096):
            heard += data
            rest += data
            while b"\r\n" in rest:
                line, _, rest = rest.partition(b"\r\n")
                yield line

    def _imap(self, line: bytes, *, secure: bool) -> bytes:
        tag, _, words = line.partition(b" ")
        word = words.split(b" ")[0].upper()
        if word == b"CAPABILITY":
            able = b"AUTH=PLAIN" if secure or self.line == "stripped" else b"STARTTLS"
            return b"* CAPABILITY IMAP4rev1 " + able + b"\r\n" + tag + b" OK done\r\n"
        if word == b"STARTTLS" and self.line == "refused":
            return tag + b" NO not today\r\n"
        if word == b"AUTHENTICATE":
            self._tag = tag
            return b"+ \r\n"
        if not words:  # what the client says after the plus sign
            return self._tag + b" OK done\r\n"
        bye = b"* BYE then\r\n" if word == b"LOGOUT" else b""
        return bye + tag + b" OK done\r\n"

    def _smtp(self, line: bytes, *, secure: bool) -> bytes:
        word = line.split(b" ")[0].upper()
        if word == b"EHLO":
            able = b"AUTH PLAIN" if secure or self.line == "stripped" else b"STARTTLS"
            return b"250-here\r\n250 " + able + b"\r\n"
        if word == b"STARTTLS":
            return b"454 not today\r\n" if self.line == "refused" else b"220 go on\r\n"
        codes = {b"AUTH": b"235", b"DATA": b"354", b"QUIT": b"221"}
        said_in_letter = word not in {*codes, b"MAIL", b"RCPT", b"RSET", b"."}
        return b"" if said_in_letter else codes.get(word, b"250") + b" fine\r\n"


__all__ = ["LONG_AGO", "Line", "MailServer", "Signed", "Speaks", "make_ca", "make_certificate"]
