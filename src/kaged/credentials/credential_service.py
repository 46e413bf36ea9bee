"""`CredentialService`: the credentials as commands and routes see them; never a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent, AuditLog
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.checks import CheckRow, CheckStatus
from kaged.config.problems import ConfigFileInvalid
from kaged.credentials.credential_trial import TrialRun
from kaged.credentials.secret_keeper import SecretKeeper
from kaged.credentials.value_sources import CredentialValues
from kaged.kernel.bindings import NoValue, NoValueReason, SecretValue
from kaged.kernel.describe import describe_credential
from kaged.kernel.request_paths import parse_path

if TYPE_CHECKING:
    from kaged.config.credentials_section import CredentialSection
    from kaged.config.settings import Settings

CHECK: Final = "credentials"
WHAT: Final = "The credentials of [credentials], which programs in cages use without seeing them."

_ASKED: Final = frozenset({"command", "oauth"})
"""Sources that are somebody else's work to ask."""


class CredentialNotFound(KagedError):
    """No credential has that name."""

    code = "credential_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is no credential {name} on this machine.",
            fix=f"`kaged credential add {name}` adds it; `kaged credential list` shows the others.",
        )


class CredentialService:
    """Lists, sets, forgets and tests credentials. `by` is always the operator."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        keeper: SecretKeeper,
        values: CredentialValues,
        trials: TrialRun,
        audit: AuditLog,
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._values = values
        self._trials = trials
        self._audit = audit

    async def list(self) -> list[JsonObject]:
        """Return every credential, those that cannot be used as well."""
        sections = self._settings().daemon.value.credentials
        names = sorted({*sections.good, *sections.broken})
        return [await self.show(name, look=False) for name in names]

    async def show(self, name: str, *, look: bool = True) -> JsonObject:
        """Return one credential without its value. Raises CredentialNotFound.

        Without `look` no program is started and no server is asked whether there is a value.
        """
        sections = self._settings().daemon.value.credentials
        if name in sections.broken:
            problems: list[JsonValue] = [
                {"message": str(one), "fix": one.fix, "code": one.code}
                for one in sections.broken[name]
            ]
            return {"name": name, "state": "invalid", "problems": problems}
        section = self._section(name)
        source = _source(section, name, self._settings())
        looked = look or source not in _ASKED
        found = await self._values.value_of(name) if looked else None
        shown = section.shown
        said = describe_credential(section.binding(name), shown.env, map(str, shown.files))
        granted = section.granted
        return {
            "name": name,
            "state": _state(found),
            "detail": found.detail if isinstance(found, NoValue) else "",
            "fix": found.fix if isinstance(found, NoValue) else "",
            "source": source,
            "hosts": [one.text for one in section.hosts],
            "env": list(shown.env),
            "files": [str(one) for one in shown.files],
            "rules": [one.text for one in section.binding(name).rules],
            "for": {
                "projects": list(granted.projects),
                "agents": list(granted.agents),
                "people": list(granted.people),
                "skills": list(granted.skills),
                "mcp": list(granted.mcp),
            },
            "allows": [one.as_json() for one in said],
            "problems": [],
        }

    async def set_value(self, name: str, value: str) -> JsonObject:
        """Seal a value in the vault in place of what was there.

        Raises:
            CredentialNotFound: no section has that name.
            KagedError: `credential_source_fixed`; its value comes from elsewhere.
            KeeperLocked: the vault's key is gone.
        """
        section = self._section(name)
        source = _source(section, name, self._settings())
        if source not in ("vault", "oauth"):
            raise KagedError(
                f"The value of the credential {name} comes from its {source}.",
                code="credential_source_fixed",
                fix=f"change it there, or set vault = true in [credentials.{name}]",
            )
        if not value.isprintable():
            raise KagedError(
                "The value holds control characters.",
                code="invalid_params",
                fix="Give it as one line.",
            )
        self._audit.require_writable()
        await self._keeper.put(name, value)
        await self._audit.record(AuditEvent("credential.set", {"name": name, "source": source}))
        return await self.show(name)

    async def remove_value(self, name: str) -> bool:
        """Forget what the vault holds for a name, configured or not; return whether it held any."""
        self._audit.require_writable()
        self._values.forget(name)
        gone = await self._keeper.delete(name)
        if gone:
            await self._audit.record(AuditEvent("credential.removed", {"name": name}))
        return gone

    async def test(self, name: str, path: str) -> JsonObject:
        """Ask the first host for a path, with the credential, out of a cage.

        Raises:
            CredentialNotFound: no section has that name.
            RequestPathInvalid: the path is none.
        """
        section = self._section(name)
        parse_path(path.partition("?")[0])
        outcome = await self._trials.ask(name, section, path)
        facts: JsonObject = {"name": name, "host": outcome.host, "status": outcome.status}
        self._audit.post(AuditEvent("credential.tested", {**facts, "refused": outcome.refused}))
        return {"name": name, **outcome.as_json()}

    async def row(self) -> CheckRow:
        """Return doctor's row."""
        sections = self._settings().daemon.value.credentials
        broken = [str(problems[0]) for problems in sections.broken.values()]
        if broken:
            return CheckRow(
                CHECK, CheckStatus.FAIL, WHAT, "; ".join(broken), "Correct config.toml."
            )
        missing: list[NoValue] = []
        for name in sections:
            source = _source(self._section(name), name, self._settings())
            if source not in _ASKED:  # a check starts no program
                found = await self._values.value_of(name)
                missing += [found] if isinstance(found, NoValue) else []
        if missing:
            locked = any(one.reason is NoValueReason.LOCKED for one in missing)
            status = CheckStatus.FAIL if locked else CheckStatus.WARN
            details = "; ".join(dict.fromkeys(one.detail for one in missing))
            return CheckRow(CHECK, status, WHAT, details, missing[0].fix)
        return CheckRow(CHECK, CheckStatus.OK, WHAT, f"{len(sections)} configured")

    def _section(self, name: str) -> CredentialSection:
        try:
            section = self._settings().daemon.value.credentials.get(name)
        except ConfigFileInvalid as error:
            first = error.problems[0]
            raise KagedError(
                f"The credential {name} cannot be used: {first.message}.",
                code="config_invalid",
                fix=first.fix,
            ) from error
        if section is None:
            raise CredentialNotFound(name)
        return section


def _state(found: SecretValue | NoValue | None) -> str:
    if found is None:
        return "not asked"
    return found.reason.value if isinstance(found, NoValue) else "set"


def _source(section: CredentialSection, name: str, settings: Settings) -> str:
    if section.oauth is not None:
        return "oauth"
    if section.command is not None:
        return "command"
    if section.keyring is not None:
        return "keyring"
    local = settings.local.value.credentials
    written = name in local or name in local.broken
    return "local.toml" if written and not section.vault else "vault"
