"""`authorities`: what others' certificates are checked with, read once for many connections."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import TypeAlias

Edition: TypeAlias = tuple[str, int, int]
"""A file or folder, when it was changed last, and its size."""


def authorities(*files: str) -> ssl.SSLContext:
    """Return a context that trusts the machine's authorities, or SSL_CERT_FILE's, and these files'.

    Reading them takes a hundred times as long as most requests, and whoever does so holds up the
    event loop: they are read again only when their files have changed. The context is everybody's,
    so nobody adds anything to it.
    """
    places = ssl.get_default_verify_paths()
    machine = (places.openssl_cafile, places.openssl_capath, places.cafile, places.capath)
    editions = {_edition(one) for one in machine if one}
    return _read(frozenset(editions), tuple(map(_edition, files)))


def _edition(path: str) -> Edition:
    try:
        found = os.stat(path)  # noqa: PTH116 - for each request
    except OSError:
        return path, 0, 0
    return path, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=8)
def _read(_machine: frozenset[Edition], files: tuple[Edition, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path, _, _ in files:
        context.load_verify_locations(cafile=path)
    return context
