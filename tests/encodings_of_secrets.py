"""A secret in 46 forms in which a service may repeat it: `encodings`."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus


def encodings(secret: str) -> dict[str, str]:
    """Return a secret in every form that the page on service capabilities names, by its name."""
    raw = secret.encode()
    found = {
        "plain": secret,
        "upper": secret.upper(),
        "lower": secret.lower(),
        "swapped": secret.swapcase(),
        "within": f"before{secret}after",
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "quote": quote(secret, safe=""),
        "quote_plus": quote_plus(secret),
        "percent all": _each(secret, _percent),
        "percent all lower": _each(secret, _percent).lower(),
        "percent even": _each(secret, _percent, 2),
        "percent third": _each(secret, _percent, 3),
        "percent one": secret[:3] + _percent(secret[3]) + secret[4:],
        "percent twice": quote(_each(secret, _percent, 2), safe=""),
        "json": json.dumps(secret)[1:-1],
        "json slashes": json.dumps(secret)[1:-1].replace("/", "\\/"),
        "json in json": json.dumps({"a": json.dumps({"b": secret})}),
        "json all": _each(secret, _json),
        "json even": _each(secret, _json, 2),
        "json upper": _each(secret, _json).upper().replace("\\U", "\\u"),
        "x escapes": _each(secret, _x, 2),
        "html": html.escape(secret),
        "html numbers": _each(secret, lambda char: f"&#{ord(char)};"),
        "html hex": _each(secret, lambda char: f"&#x{ord(char):x};"),
        "html HEX": _each(secret, lambda char: f"&#X{ord(char):X};"),
        "html even": _each(secret, lambda char: f"&#{ord(char)};", 2),
        "html in a url": quote(_each(secret, lambda char: f"&#{ord(char)};", 3), safe=""),
        "url": f"https://h.example/cb?token={quote(secret, safe='')}&copy=1",
        "basic": base64.b64encode(f"ann:{secret}".encode()).decode(),
        "basic url": base64.urlsafe_b64encode(f"ann@x:{secret}".encode()).decode(),
        "mime": base64.encodebytes(b"> " + raw + b" and a tail of some length " * 3).decode(),
        "base64 in a url": quote(base64.b64encode(raw).decode(), safe=""),
        "base64 in lower case": base64.b64encode(raw).decode().lower(),
    }
    for offset in range(3):
        padded = b"\xff" * offset + raw
        found[f"base64 at {offset}"] = base64.b64encode(padded).decode()
        found[f"base64 at {offset}, bare"] = base64.b64encode(padded).decode().rstrip("=")
        found[f"base64url at {offset}"] = base64.urlsafe_b64encode(padded).decode()
        found[f"base64url at {offset}, bare"] = (
            base64.urlsafe_b64encode(padded).decode().rstrip("=")
        )
    return found


def _each(text: str, encode: Callable[[str], str], step: int = 1) -> str:
    """Return a text with every character encoded, or every second or third one."""
    return "".join(encode(char) if at % step == 0 else char for at, char in enumerate(text))


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _json(char: str) -> str:
    return f"\\u{ord(char):04x}" if char.isascii() else json.dumps(char)[1:-1]


def _x(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else _json(char)
