"""What one cage gets: only what is granted, made anew, and taken away while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.base import ManualClock
from kaged.cage.gate_port import BoundConnection, BoundResult
from kaged.config.credentials_section import OAuthClient
from kaged.config.locations import Locations
from kaged.config.settings import Settings
from kaged.credentials.cage_kit import NOTHING, CageKits, CageUser, with_kit
from kaged.credentials.trust_files import BUNDLE, TrustFiles
from kaged.credentials.value_sources import CredentialValues
from kaged.kernel.bindings import CageCredentials, NoValue, NoValueReason, SecretValue, ValueOf
from kaged.kernel.credential_grants import AgentCage, ServerCage
from kaged.kernel.decision import Decision
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.policy import CagePolicy
from unit.config.trials import OperatorFiles

SECTION = """\
[credentials.github]
hosts = ["github.example", "api.github.example:8443"]
as = { env = ["GITHUB_TOKEN", "GH_TOKEN"], files = ["netrc"] }
for = { projects = ["shop"], mcp = ["files"] }
"""
SAME_VARIABLE = """\
[credentials.other]
hosts = ["other.example"]
as = { env = ["GH_TOKEN"] }
for = { projects = ["shop"] }
"""
SHOP = AgentCage(frozenset({"shop"}), "primary")
AUTHORITY = "-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n"


class Gate:
    """The gate of one cage, as far as a kit knows it."""

    authority_pem = AUTHORITY

    def __init__(self, held: CageCredentials, value_of: ValueOf, what: str) -> None:
        self.held, self.value_of, self.what = held, value_of, what

    def binds(self, host: str, port: int) -> bool:
        return self.held.binds(host, port)

    async def serve(self, connection: BoundConnection) -> BoundResult:
        connection.client.close()
        connection.server.close()
        return BoundResult(0, 0, broken=True)

    def close(self) -> None:
        """Do nothing."""


class Keeper:
    """A vault that holds one value under every name."""

    async def get(self, name: str) -> str | None:
        return f"value-of-{name}"

    async def put(self, name: str, value: str) -> None:
        raise AssertionError(name, value)

    async def delete(self, name: str) -> bool:
        raise AssertionError(name)

    async def access_token(
        self, name: str, client: OAuthClient, secret: str | None
    ) -> tuple[str, str] | None:
        raise AssertionError(name, client, secret)


class Desk:
    """Kits over settings that a test changes."""

    def __init__(self, files: OperatorFiles, text: str = SECTION) -> None:
        self._files = files
        self.settings = self._read(text)
        self.gates: list[Gate] = []
        self.refused: list[tuple[str, CageUser, str]] = []
        values = CredentialValues(lambda: self.settings, Keeper(), _no_program, ManualClock())
        trust = TrustFiles(())
        self.kits = CageKits(lambda: self.settings, values, self._open, self._refused, trust)

    def write(self, text: str) -> None:
        self.settings = self._read(text)

    def _read(self, text: str) -> Settings:
        places = Locations.from_env({"KAGED_HOME": "/nowhere"})
        return Settings(places, self._files.config(text), self._files.local(""))

    def _open(self, held: CageCredentials, value_of: ValueOf, what: str) -> Gate:
        self.gates.append(Gate(held, value_of, what))
        return self.gates[-1]

    def _refused(self, name: str, user: CageUser, what: str, decision: Decision) -> None:
        del what
        self.refused.append((name, user, decision.rule))


async def _no_program(name: str, command: tuple[str, ...], seconds: float) -> str:
    raise AssertionError(name, command, seconds)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return kits with the credential `github`."""
    return Desk(OperatorFiles(tmp_path))


def test_a_cage_that_asks_for_nothing_gets_nothing(desk: Desk) -> None:
    assert desk.kits.kit("shell", SHOP, ()) is NOTHING
    assert desk.gates == []
    policy = CagePolicy(net=(parse_target("a.example:1"),))
    assert with_kit(policy, NOTHING) is policy


def test_two_cages_hold_different_placeholders_for_the_same_credential(desk: Desk) -> None:
    first, second = (desk.kits.kit("shell", SHOP, ("github",)) for _ in range(2))
    marks = [dict(one.env)["GITHUB_TOKEN"] for one in (first, second)]
    assert marks[0] != marks[1]
    assert dict(first.env)["GH_TOKEN"] == marks[0]
    # Each gate knows its own cage's, and not the other's.
    assert [gate.held.by_placeholder(marks[0]) is not None for gate in desk.gates] == [True, False]
    assert dict(first.env)["SSL_CERT_FILE"] == BUNDLE
    assert AUTHORITY.encode() in next(one for one in first.files if one.path == BUNDLE).content


def test_a_kit_implies_its_hosts_and_drops_what_was_not_granted(desk: Desk) -> None:
    kit = desk.kits.kit("shell", SHOP, ("github", "unknown"))
    policy = CagePolicy(net=(parse_target("a.example:1"),), credentials=("github", "unknown"))
    made = with_kit(policy, kit)
    assert made.credentials == ("github",)
    assert made.net == (
        NetTarget("a.example", 1),
        NetTarget("api.github.example", 8443),
        NetTarget("github.example", 443),
    )
    assert desk.refused == [("unknown", SHOP, "credential.unknown")]


def test_a_refusal_is_told_once_and_again_after_a_grant_in_between(desk: Desk) -> None:
    denied = SECTION.replace('"shop"', '"another"')
    for text in (denied, denied, SECTION, denied):
        desk.write(text)
        desk.kits.kit("shell", SHOP, ("github",))
    assert [rule for _, _, rule in desk.refused] == ["credential.grant"] * 2


def test_two_credentials_of_one_variable_are_not_mixed_up(tmp_path: Path) -> None:
    desk = Desk(OperatorFiles(tmp_path), SECTION + SAME_VARIABLE)
    kit = desk.kits.kit("shell", SHOP, ("github", "other"))
    assert kit.names == ("github",)
    assert [rule for _, _, rule in desk.refused] == ["credential.variable"]


def test_a_section_that_is_wrong_is_refused_with_its_problem(desk: Desk) -> None:
    desk.write(SECTION.replace("github.example", "*.example"))
    assert desk.kits.kit("shell", SHOP, ("github",)) is NOTHING
    assert [rule for _, _, rule in desk.refused] == ["credential.invalid"]


async def test_a_grant_taken_away_ends_a_running_cages_use_of_the_value(desk: Desk) -> None:
    desk.kits.kit("shell", SHOP, ("github",))
    desk.kits.kit("mcp:files", ServerCage("files"), ("github",))
    agent, server = desk.gates
    assert await agent.value_of("github") == SecretValue("value-of-github")
    desk.write(SECTION.replace('projects = ["shop"]', "projects = []"))
    gone = await agent.value_of("github")
    assert isinstance(gone, NoValue)
    assert gone.reason is NoValueReason.REVOKED
    assert await server.value_of("github") == SecretValue("value-of-github")
