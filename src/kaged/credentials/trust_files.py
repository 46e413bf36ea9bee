"""`TrustFiles`: what programs of a cage check certificates with, the cage's authority added.

The machine's bundle with one more certificate is put over the bundle where programs look for it,
and named by the variables of those that bring a bundle of their own. All other hosts are checked
by the machine's authorities, as ever.
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import Final

from kaged.base.file_stamp import Stamp, stamp_of
from kaged.cage import ShownFile
from kaged.credentials.tool_files import INSIDE

BUNDLE: Final = f"{INSIDE}/ca-bundle.pem"
AUTHORITY: Final = f"{INSIDE}/ca.pem"

BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cert.pem",
)
"""Where distributions keep all their authorities in one file, as far as cages are shown it."""

VARIABLES: Final = (
    ("SSL_CERT_FILE", BUNDLE),
    ("REQUESTS_CA_BUNDLE", BUNDLE),
    ("CURL_CA_BUNDLE", BUNDLE),
    ("GIT_SSL_CAINFO", BUNDLE),
    ("PIP_CERT", BUNDLE),
    ("CARGO_HTTP_CAINFO", BUNDLE),
    ("NPM_CONFIG_CAFILE", BUNDLE),
    ("AWS_CA_BUNDLE", BUNDLE),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", BUNDLE),
    # Node adds this to its own authorities; it takes no bundle in their place.
    ("NODE_EXTRA_CA_CERTS", AUTHORITY),
    ("DENO_TLS_CA_STORE", "mozilla,system"),
    ("DENO_CERT", AUTHORITY),
)


class TrustFiles:
    """Makes the trust store of each cage; reads the machine's when that has changed."""

    def __init__(self, bundles: tuple[str, ...] = BUNDLES) -> None:
        self._bundles = bundles
        self._read: tuple[Stamp | None, bytes] | None = None

    def of(self, authority: str) -> tuple[ShownFile, ...]:
        """Return the files of a cage whose gate signs with this authority (PEM). Blocks briefly."""
        places = [one for one in self._bundles if _is_plain(one)]
        machine = self._machine(places[0] if places else None)
        own = authority.encode("ascii")
        bundle = machine + b"\n" + own
        return (
            ShownFile(AUTHORITY, own),
            *(ShownFile(path, bundle) for path in (BUNDLE, *places)),
        )

    def _machine(self, path: str | None) -> bytes:
        if path is None:
            return b"\n".join(
                ssl.DER_cert_to_PEM_cert(one).encode("ascii")
                for one in ssl.create_default_context().get_ca_certs(binary_form=True)
            )
        stamp = stamp_of(os.stat(path))  # noqa: PTH116 - before each command of a cage
        if self._read is None or stamp is None or self._read[0] != stamp:
            self._read = (stamp, Path(path).read_bytes())
        return self._read[1]


def _is_plain(path: str) -> bool:
    # What is a link leads to another of them, over which a file is put.
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
