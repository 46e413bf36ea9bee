"""Values of operator files: paths of the machine, addresses to bind, commands, networks."""

from __future__ import annotations

import ipaddress
import shlex
from dataclasses import field
from pathlib import Path
from typing import Final, TypeAlias

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.containers import ListOf, Mapped
from kaged.config.nodes import Node
from kaged.config.reading import INVALID, DocumentPosition, NoValue
from kaged.config.shapes import Shape, TextShape, wrong_kind
from kaged.kernel.paths import normalise

IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_WORD: Final = TextShape(max_chars=4096, one_line=False)
_WORDS: Final = ListOf(_WORD, max_items=200)
_PATH: Final = TextShape(max_chars=4000)


@dataclass(frozen=True, slots=True)
class HostPath(Shape[Path]):
    """A path of this machine: absolute, below `~/`, or relative to the file it is written in."""

    WORDS = "path"

    def read(self, node: Node, place: DocumentPosition) -> Path | NoValue:
        """Read it as an absolute path."""
        text = _PATH.read(node, place)
        if isinstance(text, NoValue):
            return INVALID
        base: Path | None = place.reading.base
        if text == "~" or text.startswith("~/"):
            base, text = place.reading.home, text[2:]
        elif text.startswith("~"):
            base = None  # The home of another user is not looked up.
        if base is None and not text.startswith("/"):
            return place.error(node, "cannot be made an absolute path", "write a full path")
        return Path(base or "/", text)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a string schema."""
        return _PATH.schema(defs)


@dataclass(frozen=True, slots=True)
class CommandShape(Shape[tuple[str, ...]]):
    """A command: a list of words, or one text that is split like a shell would; no shell runs."""

    WORDS = "list of words"

    def read(self, node: Node, place: DocumentPosition) -> tuple[str, ...] | NoValue:
        """Read the words; blank ones are dropped."""
        if isinstance(node.value, str):
            text = _WORD.read(node, place)
            if isinstance(text, NoValue):
                return INVALID
            try:
                words = tuple(shlex.split(text))
            except ValueError as error:
                return place.error(node, f"cannot be split into words: {error}", "write a list")
        elif isinstance(node.value, tuple):
            read = _WORDS.read(node, place)
            if isinstance(read, NoValue):
                return INVALID
            words = read
        else:
            return wrong_kind(node, place, "a list of words")
        words = tuple(word for word in words if word.strip())
        return words or place.error(node, "is an empty command", "name the program to run")

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return both forms."""
        listed: JsonObject = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"oneOf": [{"type": "string", "minLength": 1}, listed]}


@dataclass(frozen=True, slots=True)
class Bind:
    """An address to listen on; `chosen` when somebody wrote it, rather than the default."""

    host: str
    port: int
    chosen: bool = field(default=True, compare=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        """Write it as `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bind(text: str) -> Bind | None:
    """Read `address:port`, `[address]:port`, `localhost:port` or `off` (None).

    Raises:
        KagedError: `host_value_invalid`; anything else; names are not looked up.
    """
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    fix = 'write for example "127.0.0.1:7460", "[::1]:7460" or "off"'
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise KagedError(
            "is no address with a port from 0 to 65535", code="host_value_invalid", fix=fix
        )
    if host == "localhost":
        host = "127.0.0.1"
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise KagedError("is no address to bind to", code="host_value_invalid", fix=fix) from None
    if (address.version == 6) != (bare != host):
        raise KagedError(
            "an IPv6 address, and no other, stands in brackets", code="host_value_invalid", fix=fix
        )
    return Bind(str(address), int(port))


def parse_network(text: str) -> IpNetwork:
    """Read an address or a network such as `10.0.0.0/8`. Raises `host_value_invalid`."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise KagedError(f"is no address or network ({error})", code="host_value_invalid") from None


BIND: Final = Mapped(TextShape(max_chars=200), parse_bind, '`address:port` or `"off"`')
NETWORK: Final = Mapped(TextShape(max_chars=100), parse_network, "address or network")
ABSOLUTE: Final = Mapped(TextShape(max_chars=4000), normalise, "absolute path")
