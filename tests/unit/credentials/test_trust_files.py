"""The trust store of a cage: the machine's authorities and one more, in each place."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from kaged.credentials.trust_files import AUTHORITY, BUNDLE, TrustFiles

OWN = "-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n"


def test_the_bundle_holds_the_machines_and_the_cages_authority(tmp_path: Path) -> None:
    machine = tmp_path / "bundle.crt"
    machine.write_text("MACHINE\n", "ascii")
    link = tmp_path / "link.crt"
    link.symlink_to(machine)
    files = TrustFiles((str(link), str(machine), str(tmp_path / "none.crt"))).of(OWN)
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
    trust = TrustFiles((str(machine),))
    trust.of("one\n")
    fresh = tmp_path / "fresh.crt"
    fresh.write_text("other\n", "ascii")  # of equal size
    fresh.replace(machine)
    (_, bundle, _) = trust.of("two\n")
    assert bundle.content == b"other\n\ntwo\n"


def test_a_machine_without_a_bundle_has_what_the_library_trusts() -> None:
    (_, bundle) = TrustFiles(()).of(OWN)
    context = ssl.create_default_context()
    assert bundle.content.count(b"BEGIN CERTIFICATE") == len(context.get_ca_certs()) + 1
