"""`CredentialValues`: the value of a credential, from where the operator keeps it."""

from __future__ import annotations

import asyncio
import importlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kaged.base import Clock, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.credentials_section import MAX_VALUE_CHARS
from kaged.config.problems import ConfigFileInvalid
from kaged.credentials.secret_keeper import KeeperLocked, SecretKeeper
from kaged.kernel.bindings import NoValue, NoValueReason, SecretValue

if TYPE_CHECKING:
    from kaged.config.credentials_section import CredentialSection
    from kaged.config.settings import Settings

MAX_CACHED: Final = 1000

RunCommand = Callable[[str, tuple[str, ...], float], Awaitable[str]]
"""Runs an operator's program, for a credential of that name, and returns what it printed."""

_log = get_logger("kaged.credentials")


class CredentialProgramFailed(KagedError):
    """The operator's program for a credential did not print a value."""

    code = "credential_program_failed"


class CredentialValues:
    """Looks values up when a request needs one; nothing is read earlier."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        keeper: SecretKeeper,
        run_command: RunCommand,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._run_command = run_command
        self._clock = clock
        self._printed: OrderedDict[str, _Printed] = OrderedDict()
        self._running: dict[str, asyncio.Lock] = {}

    async def value_of(self, name: str) -> SecretValue | NoValue:
        """Return a credential's value now, or why there is none."""
        settings = self._settings()
        try:
            section = settings.daemon.value.credentials.get(name)
            local = settings.local.value.credentials.get(name)
        except ConfigFileInvalid as error:
            first = error.problems[0]
            return NoValue(NoValueReason.FAILED, first.message, first.fix)
        if section is None:
            return NoValue(
                NoValueReason.MISSING,
                f"There is no credential {name} on this machine.",
                f"`kaged credential add {name}` adds it.",
            )
        written = None if local is None else local.value.reveal()
        try:
            found = await self._look_up(name, section, written)
        except KagedError as error:
            _log.warning("credential.no_value", binding=name, code=error.code, reason=error.message)
            locked = isinstance(error, KeeperLocked)
            reason = NoValueReason.LOCKED if locked else NoValueReason.FAILED
            return NoValue(reason, error.message, error.fix or "")
        return found if isinstance(found, NoValue) else _checked(name, found)

    def forget(self, name: str) -> None:
        """Ask the program again next time."""
        self._printed.pop(name, None)

    async def _look_up(
        self, name: str, section: CredentialSection, written: str | None
    ) -> SecretValue | NoValue:
        if section.oauth is not None:
            return await self._token(name, section)
        if section.command is not None:
            return SecretValue(await self._print(name, section))
        if section.keyring is not None:
            service, _, user = section.keyring.partition("/")
            value = await asyncio.to_thread(_from_keyring, service, user)
            fix = f"put it into the entry {section.keyring} of your keyring"
        elif written is not None and not section.vault:
            return SecretValue(written)
        else:
            value = await self._keeper.get(name)
            fix = f"`kaged credential set {name}` sets it."
        if value is None:
            return _missing(name, fix)
        return SecretValue(value)

    async def _token(self, name: str, section: CredentialSection) -> SecretValue | NoValue:
        client = section.oauth
        assert client is not None
        secret: str | None = None
        if client.client_secret is not None:
            held = self._settings().local.value.secrets.get(client.client_secret)
            if held is None:
                return _missing(name, f"put {client.client_secret} under [secrets] in local.toml")
            secret = held.reveal()
        tokens = await self._keeper.access_token(name, client, secret)
        if tokens is None:
            return _missing(name, f"`kaged credential set {name}` sets its refresh token.")
        others = (tokens[1],) if secret is None else (tokens[1], secret)
        return SecretValue(tokens[0], tuple(one for one in others if one))

    async def _print(self, name: str, section: CredentialSection) -> str:
        command = section.command
        assert command is not None
        lock = self._running.setdefault(name, asyncio.Lock())
        async with lock:  # however many ask at once, it runs once
            known = self._printed.get(name)
            now = self._clock.monotonic_s()
            if known is not None and known.command == command and now < known.until_s:
                return known.value
            text = await self._run_command(name, command, section.command_seconds)
            value = text.rstrip("\r\n")
            if not value:
                raise CredentialProgramFailed(
                    f"The program of the credential {name} printed nothing.",
                    fix=f"run {command[0]} by hand and see what it prints",
                )
            self._printed[name] = _Printed(command, value, now + section.cache_seconds)
            while len(self._printed) > MAX_CACHED:
                self._printed.popitem(last=False)
            return value


@dataclass(frozen=True, slots=True, repr=False)
class _Printed:
    """What a program printed, and until when that is used."""

    command: tuple[str, ...]
    value: str
    until_s: float


def _checked(name: str, found: SecretValue) -> SecretValue | NoValue:
    # What stands in a header cannot hold a line break; nothing that is sent may hold more than it.
    if len(found.text) > MAX_VALUE_CHARS or not found.text.isprintable():
        return NoValue(
            NoValueReason.FAILED,
            f"The value of the credential {name} is too long or holds control characters.",
            "set a value of one line",
        )
    return found


def _missing(name: str, fix: str) -> NoValue:
    return NoValue(NoValueReason.MISSING, f"The credential {name} has no value.", fix)


def _from_keyring(service: str, user: str) -> str | None:
    try:
        library: Any = importlib.import_module("keyring")
    except ImportError:
        raise KagedError(
            "The keyring library is not installed.",
            code="credential_keyring_failed",
            fix="install the package keyring beside kaged, or keep the value in the vault",
        ) from None
    try:
        found = library.get_password(service, user)
    # Boundary: back ends of the library raise whatever their desktop does.
    except Exception as error:  # noqa: BLE001 - see above
        raise KagedError(
            f"The keyring does not answer: {type(error).__name__}.",
            code="credential_keyring_failed",
            fix="unlock it, or keep the value in the vault",
        ) from None
    return found if isinstance(found, str) else None
