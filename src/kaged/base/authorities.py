"""`authorities`: what others' certificates are checked with, read once for many connections."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import TypeAlias

from kaged.base.file_stamp import Stamp, stamp_of

Edition: TypeAlias = tuple[str, Stamp | tuple[()] | None]
"""A file or folder and its stamp; an empty one where there is none."""


def authorities(*files: str, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Return a context that trusts the machine's authorities, or SSL_CERT_FILE's, and these files'.

    `protocols` are those that it offers (ALPN).

    Reading them takes a hundred times as long as most requests, and whoever does so holds up the
    event loop: they are read again only when their files have changed. The context is everybody's,
    so nobody adds anything to it.
    """
    places = ssl.get_default_verify_paths()
    machine = (places.openssl_cafile, places.openssl_capath, places.cafile, places.capath)
    editions = frozenset(_edition(one) for one in machine if one)
    others = tuple(map(_edition, files))
    if any(stamp is None for _, stamp in (*editions, *others)):
        return _read.__wrapped__(
            editions, others, protocols
        )  # it may change again in the same moment
    return _read(editions, others, protocols)


def _edition(path: str) -> Edition:
    try:
        return path, stamp_of(os.stat(path))  # noqa: PTH116 - for each request
    except OSError:
        return path, ()


@lru_cache(maxsize=16)
def _read(
    _machine: frozenset[Edition], files: tuple[Edition, ...], protocols: tuple[str, ...]
) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path, _ in files:
        context.load_verify_locations(cafile=path)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
