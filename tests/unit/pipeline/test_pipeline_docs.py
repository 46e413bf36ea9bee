from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import kaged.pipeline
from kaged.base import Ids, KagedError, ManualClock
from kaged.pipeline import SLOT_POLICIES, Capability, Pipeline, PluginConfig, PluginMode, policies
from kaged.pipeline.document import parse_document
from kaged.pipeline.payloads import HookRegistry
from kaged.pipeline.policies.redaction import KNOWN_SECRETS

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference" / "pipeline.md").read_text(encoding="utf-8")


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(kaged.pipeline.__path__, "kaged.pipeline."):
        yield import_module(found.name)


def test_every_code_capability_mode_hook_key_and_policy_is_documented() -> None:
    codes = {
        cls.code
        for module in modules()
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, KagedError) and cls.__module__.startswith("kaged.pipeline")
    }
    hooks = [h for h in HookRegistry().get_registered_hooks() if not h.startswith("cmf.")]
    slots = [slot.value.split(".")[0] for slot in SLOT_POLICIES]
    for name in (
        *codes,
        *Capability,
        *PluginMode,
        *hooks,
        *PluginConfig.model_fields.keys() - {"grpc", "unix_socket"},
        *slots,
        *policies.__all__,
        *KNOWN_SECRETS,
    ):
        assert f"`{name}`" in REFERENCE or f"`{name}." in REFERENCE, name


def test_codes_in_the_reference_exist() -> None:
    table = REFERENCE[REFERENCE.index("## Errors") :]
    named = set(re.findall(r"`((?:plugin|pipeline|tier)_[a-z_]+)`", table))
    text = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules())
    for code in named:
        assert f'"{code}"' in text, code


@pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*pipeline*.md")) + sorted(DOCS.rglob("host-cpex*.md"))
)
def test_configuration_in_the_pages_loads(page: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        text = block if "plugins:" in block else f"plugins:\n{block}"
        document = parse_document(text, page.name, {})
        assert not document.faulty, document.problems
        assert document.entries


async def test_the_rules_of_the_reference_are_accepted_by_their_plugin() -> None:
    block = re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)[0]
    clock = ManualClock()
    pipeline = Pipeline(clock, Ids(clock))
    report = await pipeline.load(parse_document(block, "reference", {}))
    assert report.in_force, report.problems
    await pipeline.close()


async def test_the_how_to_plugin_works_as_its_own_test_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "how-to" / "write-a-pipeline-plugin.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "office_hours.py").write_text(code[0], encoding="utf-8")
    (tmp_path / "office_hours_check.py").write_text(code[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    await import_module("office_hours_check").test_nobody_deploys_off_duty()
