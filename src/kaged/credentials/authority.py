"""`CageAuthority`: the certificates with which the gate ends TLS for one cage's bound hosts.

The authority is made for one cage, constrained to its bound names, and exists in the daemon's
memory only: the cage gets the certificate, nobody gets the key, and it ends with the cage.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
from collections import OrderedDict
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kaged.base import Clock
from kaged.kernel.addresses import canonical_address

_BACKDATED: Final = dt.timedelta(hours=1)  # a guest's clock is the machine's; virtual ones lag
_VALID: Final = dt.timedelta(days=366)  # the key ends with the cage, long before that
_CONTEXTS: Final = 256
H2: Final = "h2"
HTTP1: Final = "http/1.1"


class CageAuthority:
    """Makes a certificate for each bound host of one cage, when it is first asked for."""

    def __init__(self, hosts: tuple[str, ...], clock: Clock) -> None:
        self._clock = clock
        self._hosts = frozenset(hosts)
        self._key = ec.generate_private_key(ec.SECP256R1())
        # One key for all leaves: each of them is as secret as the other.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, "kaged: certificates of one cage")]
        )
        self._certificate = self._self_signed(hosts)
        self._contexts: OrderedDict[tuple[str, bool], ssl.SSLContext] = OrderedDict()

    @property
    def pem(self) -> str:
        """The authority's certificate, for the trust stores of the cage."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def context(self, host: str, *, h2: bool) -> ssl.SSLContext:
        """Return what the gate serves TLS with for a bound host, offering HTTP/2 or not."""
        if host not in self._hosts:
            raise ValueError(f"{host} is not bound in this cage")
        key = (host, h2)
        context = self._contexts.get(key)
        if context is None:
            context = self._contexts[key] = self._make_context(host, h2=h2)
            if len(self._contexts) > _CONTEXTS:
                self._contexts.popitem(last=False)
        else:
            self._contexts.move_to_end(key)
        return context

    def _make_context(self, host: str, *, h2: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sni_callback = _NamedHost(host).check
        context.set_alpn_protocols([H2, HTTP1] if h2 else [HTTP1])
        pem = self._leaf(host).public_bytes(serialization.Encoding.PEM)
        pem += self._leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        # The library reads keys from files only; this one is memory without a name.
        fd = os.memfd_create("kaged-leaf", os.MFD_CLOEXEC)
        try:
            os.write(fd, pem)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context

    def _self_signed(self, hosts: tuple[str, ...]) -> x509.Certificate:
        permitted = [_name_of(host) for host in hosts]
        addresses = [one for one in permitted if isinstance(one, x509.IPAddress)]
        # What a kind of name is not constrained in, it is free in.
        excluded: list[x509.GeneralName] = (
            []
            if addresses
            else [
                x509.IPAddress(ipaddress.ip_network("0.0.0.0/0")),
                x509.IPAddress(ipaddress.ip_network("::/0")),
            ]
        )
        key = self._key.public_key()
        return (
            self._builder(self._subject, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.NameConstraints(list(map(_network, permitted)), excluded or None),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _leaf(self, host: str) -> x509.Certificate:
        key = self._leaf_key.public_key()
        # A common name has 64 characters at most; clients look at the alternative name only.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        return (
            self._builder(subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_name_of(host)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + _VALID)
        )


class _NamedHost:
    """Refuses a client that asks for another name than its connection leads to."""

    def __init__(self, host: str) -> None:
        self._host = host

    def check(
        self, _tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        """Return None, or the alert that ends TLS."""
        if name is None or name.lower().removesuffix(".") == self._host:
            return None
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


def _name_of(host: str) -> x509.DNSName | x509.IPAddress:
    if canonical_address(host) is None:
        return x509.DNSName(host)
    return x509.IPAddress(ipaddress.ip_address(host))


def _network(name: x509.DNSName | x509.IPAddress) -> x509.GeneralName:
    """Return a name as a constraint: an address is a network of one."""
    if isinstance(name, x509.DNSName):
        return name
    return x509.IPAddress(ipaddress.ip_network(str(name.value)))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
