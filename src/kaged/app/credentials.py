"""`build_credentials`: keys at the gate, put together: values, kits of cages, the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kaged.audit import AuditEvent, AuditLog
from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import Spawner
from kaged.config.settings import Settings
from kaged.credentials.cage_kit import CageKits, CageUser
from kaged.credentials.credential_gate import CredentialGate
from kaged.credentials.credential_service import CredentialService
from kaged.credentials.credential_trial import TrialRun
from kaged.credentials.secret_keeper import SecretKeeper
from kaged.credentials.value_program import program_runner
from kaged.credentials.value_sources import CredentialValues
from kaged.kernel.decision import Decision


@dataclass(frozen=True, slots=True)
class Credentials:
    """What cages get, and what the operator does with it."""

    kits: CageKits
    service: CredentialService


def build_credentials(
    settings: Callable[[], Settings],
    environ: Mapping[str, str],
    *,
    spawner: Spawner,
    keeper: SecretKeeper,
    audit: AuditLog,
    clock: Clock,
) -> Credentials:
    """Build everything about credentials at the gate; nothing is started."""

    def refused(name: str, user: CageUser, what: str, decision: Decision) -> None:
        del user
        facts = {"name": name, "what": what, "rule": decision.rule, "reason": decision.detail}
        audit.post(AuditEvent("credential.not_granted", dict(facts)))

    values = CredentialValues(settings, keeper, program_runner(spawner, environ), clock)
    gate = CredentialGate(lambda event: audit.post(AuditEvent(event.name, event.data())), clock)
    kits = CageKits(settings, values, gate.open, refused)
    service = CredentialService(settings, keeper, values, TrialRun(spawner, kits), audit)
    return Credentials(kits, service)
