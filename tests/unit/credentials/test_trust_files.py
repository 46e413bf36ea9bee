"""The trust store of a cage: the machine's authorities and one more, in each place."""

from __future__ import annotations

import datetime as dt
import os
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
from cryptography.x509.oid import NameOID

from kaged.credentials.trust_files import AUTHORITY, BUNDLE, TrustFiles

OWN = "-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n"


def test_the_bundle_holds_the_machines_and_the_cages_authority(tmp_path: Path) -> None:
    machine = tmp_path / "bundle.crt"
    machine.write_text("MACHINE\n", "ascii")
    link = tmp_path / "link.crt"
    link.symlink_to(machine)
    files = TrustFiles((str(link), str(machine), str(tmp_path / "none.crt")), ()).of(OWN)
    found = {one.path: one.content.decode() for one in files}
    assert found == {
        AUTHORITY: OWN,
        BUNDLE: f"MACHINE\n\n{OWN}",
        str(machine): f"MACHINE\n\n{OWN}",
    }


def test_another_bundle_of_the_machine_is_read_again_and_no_authority_stays(tmp_path: Path) -> None:
    machine = tmp_path / "bundle.crt"
    machine.write_text("first\n", "ascii")
    os.utime(machine, ns=(1, 1))
    trust = TrustFiles((str(machine),), ())
    trust.of("one\n")
    fresh = tmp_path / "fresh.crt"
    fresh.write_text("other\n", "ascii")  # of equal size
    fresh.replace(machine)
    (_, bundle, _) = trust.of("two\n")
    assert bundle.content == b"other\n\ntwo\n"


def test_a_store_of_java_holds_the_same_authorities_without_a_password(tmp_path: Path) -> None:
    made = [self_signed(f"authority {number}") for number in range(3)]
    bundle, store = tmp_path / "bundle.crt", tmp_path / "cacerts"
    bundle.write_text(f"{made[0]}\n-----BEGIN CERTIFICATE-----\nbroken\n{made[1]}", "ascii")
    store.write_bytes(b"what was there")
    *_, java = TrustFiles((str(bundle),), (str(store),)).of(made[2])
    assert java.path == str(store)
    held = load_pkcs12(java.content, None).additional_certs
    names = [one.certificate.subject.rfc4514_string() for one in held]
    assert names[0] == "CN=authority 0"
    assert names[-1] == "CN=authority 2"


def self_signed(name: str) -> str:
    """Return a certificate of an authority that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    later = now + dt.timedelta(days=1)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7, now, later)
    made = builder.sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode("ascii")


def test_a_machine_without_a_bundle_has_what_the_library_trusts() -> None:
    (_, bundle) = TrustFiles((), ()).of(OWN)
    context = ssl.create_default_context()
    assert bundle.content.count(b"BEGIN CERTIFICATE") == len(context.get_ca_certs()) + 1
