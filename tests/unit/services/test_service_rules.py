"""What the manager and the registry hold providers to, one rule at a time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.service_lab import FakeProvider, ServiceLab, definition
from kaged.base import ManualClock
from kaged.services.contract import InvokeCall
from kaged.services.errors import CapabilityError, CapabilityInvalidInput
from kaged.services.registry import CapabilityRegistry
from kaged.services.sanitize import OutputRefused, harden
from requirements import requirement

TESTS = Path(__file__).parents[2]
KEYS = (
    "access_token", "refresh_token", "id_token", "client_secret", "cookie", "Set-Cookie",
    "authorization", "Authorization", "accessToken",
)  # fmt: skip


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ServiceLab]:
    found = await ServiceLab(tmp_path, clock).open()
    await found.register()
    yield found
    await found.close()


@requirement("SC-POL-10")
async def test_each_precondition_of_an_operation_has_its_own_code(lab: ServiceLab) -> None:
    async def code(given: dict[str, Any]) -> str:
        try:
            await lab.invoke("list_messages", given=given)
        except CapabilityError as error:
            return error.code
        return "ok"

    good = {"folder": "inbox"}
    assert await code(good) == "capability_auth_required"
    await lab.link()
    assert await code(good) == "ok"
    assert await code({}) == "capability_invalid_input"

    async def down(_: InvokeCall) -> Any:
        raise ConnectionError("no route")

    lab.provider.on_invoke = down
    assert await code(good) == "capability_backend_unavailable"


@requirement("SC-PROV-06")
@pytest.mark.parametrize("wrong", ["gogx.email", "Gog.email", "email"])
async def test_a_namespace_is_the_prefix_of_everything_it_offers(wrong: str) -> None:
    registry = CapabilityRegistry(ManualClock())
    with pytest.raises(CapabilityInvalidInput) as refused:
        await registry.register(FakeProvider("gog", definition("gog.ok"), definition(wrong)))
    assert "gog" in refused.value.message
    assert wrong.lower() in refused.value.message.lower()
    assert registry.list() == ()


@requirement("SC-PROV-10")
async def test_a_capability_leads_to_the_provider_that_offered_it() -> None:
    registry = CapabilityRegistry(ManualClock())
    providers = {name: FakeProvider(name) for name in ("gog", "acme")}
    for provider in providers.values():
        await registry.register(provider)
    for name, provider in providers.items():
        found = registry.get(f"{name}.email")
        assert found is not None
        assert found.provider.provider is provider
    with pytest.raises(CapabilityInvalidInput):
        await registry.register(FakeProvider("gog", definition("gog.other")))


@requirement("SC-PROV-08")
@pytest.mark.parametrize("key", KEYS)
def test_a_credential_key_anywhere_refuses_the_whole_output(key: str) -> None:
    secret = "s3cret-value-of-somebody"
    for output in (
        {key: secret},
        {"a": {"b": {key: secret}}},
        {"items": [{"ok": 1}, {"deep": [{key: secret}]}]},
    ):
        with pytest.raises(OutputRefused) as refused:
            harden({"messages": [], **output})
        assert secret not in str(refused.value)
    assert harden({"messages": [{"subject": "hello"}], "next_page_token": "p2"}).output


def _marked(row: str) -> set[str]:
    """Return the suites in which a test carries the mark of a row."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for mark in re.findall(r"requirement\(([^)]*)\)", path.read_text(encoding="utf-8")):
            if f'"{row}"' in mark:
                found.add(path.relative_to(TESTS).parts[0])
    return found


@requirement("SC-POL-18", "SC-PROV-14")
def test_the_rules_are_tested_alone_and_together() -> None:
    for row in ("SC-POL-02", "SC-POL-10"):
        assert {"unit", "integration"} <= _marked(row), row
    for row in ("SC-PROV-06", "SC-PROV-08", "SC-PROV-10"):
        assert "unit" in _marked(row), row
    assert _marked("SC-NOTHING-99") == set()
