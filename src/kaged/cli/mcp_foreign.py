"""`ForeignServer`: an MCP server as another client describes it, parsed once into bounded parts.

Each client has words of its own for the same few things; what kaged would not do as that client
does is refused with a reason, or noted, rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final

from kaged.audit.credentials import mask_secrets
from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cli.output import harmless
from kaged.config.records import empty_map

MAX_WORDS: Final = 200
MAX_WORD_CHARS: Final = 2048
MAX_COMMAND_CHARS: Final = 8 * 1024
MAX_VARIABLES: Final = 100
MAX_VALUE_CHARS: Final = 32 * 1024
AUTHORIZATION: Final = "MCP_AUTHORIZATION"

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_REFERENCE: Final = re.compile(
    r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}|\{env:([A-Za-z_][A-Za-z0-9_]*)\}"
)
_OPEN: Final = re.compile(r"\$\{|\{(?:env|file|input):")
_ONLY_REFERENCES: Final = re.compile(r"(?:Bearer )?\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_INPUT: Final = re.compile(r"\$\{(?:input|promptString):[^}]*\}")


class NotTaken(KagedError):
    """A description that kaged cannot or should not take over."""

    code = "mcp_server_invalid"


@dataclass(frozen=True, slots=True)
class Refused:
    """A server that is not taken over, and why."""

    original: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """What a server is and asks for.

    `env` holds only references to variables of the daemon; every value that was written out is in
    `secrets`, ready for local.toml. `missing` are variables that the client asks its user for.
    """

    original: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=empty_map)
    secrets: Mapping[str, str] = field(default_factory=empty_map)
    missing: tuple[str, ...] = ()
    enabled: bool = True
    notes: tuple[str, ...] = ()


def shown_name(name: object) -> str:
    """Return a name of somebody else's, bounded and fit to be written anywhere."""
    return str(name)[:200].encode("utf-8", "backslashreplace").decode("utf-8")


def parse_server(original: str, value: object) -> ForeignServer | Refused:
    """Read a server as any of the clients writes it."""
    try:
        if not isinstance(value, dict):
            raise NotTaken("it is no table of settings")
        return _parsed(original, value)
    except NotTaken as error:
        return Refused(original, error.message)


def with_values(server: ForeignServer, values: Mapping[str, object]) -> ForeignServer:
    """Return a server with these variables. Raises NotTaken for what cannot be one."""
    env, secrets, missing = _values(values)
    return replace(server, env=env, secrets=secrets, missing=missing)


def without_references(server: ForeignServer) -> ForeignServer:
    """Return a server that is given nothing of the daemon's environment unless somebody types it.

    A project may be anybody's, and could send what it names to an address of its own.
    """
    named = [one for one, text in server.secrets.items() if _REFERENCE.search(text)]
    return replace(
        server,
        env=empty_map(),
        secrets=MappingProxyType(
            {one: text for one, text in server.secrets.items() if one not in named}
        ),
        missing=(*server.missing, *server.env, *named),
    )


def plain_words(words: Iterable[object]) -> tuple[str, ...]:
    """Return the words of a command. Raises NotTaken: no texts, too many, a secret in them."""
    found = tuple(_plain(word, "its command") for word in words)
    if len(found) > MAX_WORDS:
        raise NotTaken(f"its command has more than {MAX_WORDS} words")
    if not all(word.strip() for word in found):
        raise NotTaken("its command has an empty word, which kaged would drop")
    text = " ".join(found)
    if len(text) > MAX_COMMAND_CHARS:
        raise NotTaken(f"its command has more than {MAX_COMMAND_CHARS} characters")
    _refuse_secret(text, "its command")
    return found


def plain_url(value: object) -> str:
    """Return an address. Raises NotTaken."""
    url = _plain(value, "its address")
    if not re.fullmatch(r"https?://[^\s/?#]\S*", url):
        raise NotTaken("its address is no http or https URL")
    _refuse_secret(url, "its address")
    return url


def _parsed(original: str, value: Mapping[str, Any]) -> ForeignServer:
    kind = value.get("type", value.get("transport"))
    if kind == "sse":
        raise NotTaken("it speaks SSE; kaged speaks streamable HTTP")
    command, url = _command(value), _first(value, "url", "serverUrl", "httpUrl")
    if bool(command) == (url is not None):
        raise NotTaken("it has neither or both of a command and an address")
    values = {**_table(value, "environment"), **_table(value, "env")}
    for one in _listed(value, "env_vars"):
        name = one.get("name") if isinstance(one, dict) else one
        values.setdefault(str(name), f"${{{name}}}")
    own = value.get("command")
    if isinstance(own, dict):  # Zed's older form has everything below `command`
        values |= _table(own, "env")
    if url is not None:
        values |= _authorization(value)
    env, secrets, missing = _values(values)
    notes = [
        f"its {what} is left out: kaged has no such setting"
        for key, what in (("cwd", "working folder"), ("envFile", "file of variables"))
        if value.get(key)
    ]
    return ForeignServer(
        original,
        plain_words(command),
        None if url is None else plain_url(url),
        env,
        secrets,
        missing,
        enabled=value.get("enabled", True) is not False and value.get("disabled") is not True,
        notes=tuple(notes),
    )


def _command(value: Mapping[str, Any]) -> list[object]:
    command, words = value.get("command"), _listed(value, "args")
    if isinstance(command, dict):
        return [command.get("path"), *_listed(command, "args")]
    if isinstance(command, list):
        return [*command, *words]
    return [] if command is None else [command, *words]


def _authorization(value: Mapping[str, Any]) -> dict[str, object]:
    headers = {**_table(value, "headers"), **_table(value, "http_headers")}
    for name, variable in _table(value, "env_http_headers").items():
        headers[name] = f"${{{variable}}}"
    token = value.get("bearer_token_env_var")
    if token is not None:
        headers["Authorization"] = f"Bearer ${{{token}}}"
    others = [name for name in headers if str(name).lower() != "authorization"]
    if others:
        raise NotTaken(
            f"it wants the header {shown_name(others[0])}; kaged sends Authorization only"
        )
    return dict.fromkeys([AUTHORIZATION] if headers else [], next(iter(headers.values()), None))


def _values(
    values: Mapping[str, object],
) -> tuple[Mapping[str, str], Mapping[str, str], tuple[str, ...]]:
    if len(values) > MAX_VARIABLES:
        raise NotTaken(f"it wants more than {MAX_VARIABLES} variables")
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    missing: list[str] = []
    for name, value in values.items():
        if not _VARIABLE.fullmatch(str(name)):
            raise NotTaken(f"{shown_name(name)!r} is no name of a variable")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise NotTaken(f"the value of {name} is no text")
        written = str(value)
        _encodable(written, f"the value of {name}")
        if len(written) > MAX_VALUE_CHARS or "\0" in written:
            raise NotTaken(f"the value of {name} is too long, or holds a NUL")
        if _INPUT.search(written):
            missing.append(name)
            continue
        text = _with_references(written, name)
        (env if _ONLY_REFERENCES.fullmatch(text) else secrets)[name] = text
    return MappingProxyType(env), MappingProxyType(secrets), tuple(missing)


def _with_references(text: str, name: str) -> str:
    """Write references to variables as kaged does. Raises NotTaken for those it has not."""
    rest = _REFERENCE.sub("", text)
    if _OPEN.search(rest):
        raise NotTaken(f"the value of {name} has a placeholder that only its client fills in")
    return _REFERENCE.sub(lambda found: f"${{{found[1] or found[2]}}}", text)


def _plain(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_WORD_CHARS:
        raise NotTaken(f"{what} is no text, or too long")
    _encodable(value, what)
    if harmless(value) != value:
        raise NotTaken(f"{what} holds control characters")
    if _OPEN.search(value):
        raise NotTaken(f"{what} has a placeholder that only its client fills in")
    return value


def _encodable(value: str, what: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise NotTaken(f"{what} is no text in UTF-8") from None


def _refuse_secret(text: str, what: str) -> None:
    if mask_secrets(text) != text:
        raise NotTaken(
            f"{what} holds what looks like a secret, and config.toml is no place for one: "
            "give it to the server in a variable"
        )


def _first(value: Mapping[str, Any], *keys: str) -> object:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _table(value: Mapping[str, Any], key: str) -> dict[str, object]:
    found = value.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NotTaken(f"its {key} is no table")
    return dict(found)


def _listed(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise NotTaken(f"its {key} is no list")
    return found
