from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kaged.pipeline
from kaged.base import Ids, KagedError, ManualClock
from kaged.lua.hooked_calls import PASSING
from kaged.pipeline import (
    SLOT_POLICIES,
    Capability,
    Extensions,
    GlobalContext,
    HttpExtension,
    MCPExtension,
    Pipeline,
    PluginConfig,
    PluginMode,
    PluginResult,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
    ToolMetadata,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
    policies,
)
from kaged.pipeline.document import parse_document
from kaged.pipeline.payloads.registry import _LATE_HOOKS, HookRegistry
from kaged.pipeline.policies.redaction import KNOWN_SECRETS
from kaged.pipeline.unfired import UNFIRED

SECRET = "AKIAIOSFODNN7EXAMPLE"
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


def test_hooks_in_the_reference_exist() -> None:
    section = REFERENCE.split("\n## Hooks\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    known = {h for h in HookRegistry().get_registered_hooks() if not h.startswith("cmf.")}
    assert named == known | _LATE_HOOKS


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
        document = parse_document(text, page.name, {"OPA_TOKEN": "t"})
        assert not document.faulty, document.problems
        assert document.entries


async def test_the_rules_of_the_reference_are_accepted_by_their_plugin() -> None:
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL) if "rules" in b)
    clock = ManualClock()
    pipeline = Pipeline(clock, Ids(clock))
    report = await pipeline.load(parse_document(block, "reference", {}))
    assert report.in_force, report.problems
    await pipeline.close()


async def test_the_policies_of_the_how_to_do_what_it_says(clock: ManualClock) -> None:
    page = (DOCS / "how-to" / "use-pipeline-policies.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    shown = re.findall(r"kind: kaged\.pipeline\.policies\.(\w+)", "".join(blocks))
    assert set(shown) == set(policies.__all__)
    # Those that need an engine, or let nothing else pass, have tests of their own.
    apart = ("OpaPolicy", "CedarPolicy", "CommandAllowlist", "ToolAllowlist", "SecretEgress")
    blocks = [block for block in blocks if not any(one in block for one in apart)]
    entries = "".join(block.removeprefix("plugins:\n") for block in blocks)
    pipeline = Pipeline(clock, Ids(clock))
    report = await pipeline.load(parse_document(f"plugins:\n{entries}", "page", {}))
    assert report.in_force, report.problems

    async def call(name: str, net: bool = False, **extra: Any) -> PluginResult[Any]:
        headers = {"accept": "*/*", "cookie": "c", "x-trace-id": "1"}
        result, _ = await pipeline.invoke_hook(
            "tool_pre_invoke",
            ToolPreInvokePayload(name=name, args=extra.get("args", {})),
            GlobalContext("r"),
            extensions=Extensions(
                http=HttpExtension(headers=headers),
                security=SecurityExtension(
                    labels=frozenset(extra.get("labels", ())),
                    subject=SubjectExtension(id=extra.get("user", "ada"), type=SubjectType.USER),
                ),
                mcp=MCPExtension(tool=ToolMetadata(name=name, annotations={"net": net})),
            ),
        )
        return result

    def denier(result: PluginResult[Any]) -> str | None:
        return None if result.violation is None else result.violation.plugin_name

    passed = await call("file.read")
    assert passed.continue_processing
    assert passed.modified_extensions is not None
    assert passed.modified_extensions.http is not None
    assert passed.modified_extensions.http.headers == {"accept": "*/*", "x-trace-id": "1"}
    assert [denier(await call("web.get")) for _ in range(3)] == [None, None, "rate"]
    assert denier(await call("web.get", user="grace")) is None
    assert denier(await call("mail.send", net=True, labels=["pii"])) == "egress"
    assert denier(await call("mail.internal", net=True, labels=["pii"])) is None
    assert denier(await call("mail.send", net=True)) is None
    assert denier(await call("shell.run")) == "house-rules"
    assert denier(await call("file.write", args={"path": "/etc/passwd"})) == "house-rules"
    assert denier(await call("file.write", args={"path": "/srv/x"})) is None
    for labels, shown in ((["pii"], "[redacted] [redacted]"), ([], "B-1234 ada@example.com")):
        result, _ = await pipeline.invoke_hook(
            "tool_post_invoke",
            ToolPostInvokePayload(name="t", result=f"{SECRET} B-1234 ada@example.com"),
            GlobalContext("r"),
            extensions=Extensions(security=SecurityExtension(labels=frozenset(labels))),
        )
        assert result.modified_payload is not None
        assert result.modified_payload.result == f"[redacted] {shown}"
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


SOURCE = Path(kaged.pipeline.__file__).parents[1]
_FIRES = {
    **{
        f"{when}_{kind}": f"{kind}_{'pre' if when == 'before' else 'post'}_{verb}"
        for kind, verb in (
            ("tool", "invoke"),
            ("agent", "invoke"),
            ("prompt", "fetch"),
            ("resource", "fetch"),
        )
        for when in ("before", "after")
    },
    "before_model": "cmf.llm_input",
    "after_model": "cmf.llm_output",
    "delegate": "token_delegate",
}


def test_what_passes_is_what_the_code_lets_pass() -> None:
    """Each module that fires a hook has its rows, with exactly the hooks that it fires."""
    table = REFERENCE.partition("\n## What passes it\n")[2].partition("\n\nNothing else")[0]
    said: dict[str, set[str]] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[3].startswith("`"):
            said.setdefault(cells[3].strip("`"), set()).update(re.findall(r"`([\w.]+)`", cells[1]))
    fires: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name == "hooked_call.py" or "HookedCall" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                hook = _FIRES.get(node.func.attr)
                if hook is not None:
                    fires.setdefault(str(path.relative_to(SOURCE)), set()).add(hook)
    assert said == fires
    names = re.search(r"\| what a script reaches for \|[^|]*\|([^|]*)\|", table)
    assert names is not None
    assert set(re.findall(r"`([\w.]+)`", names[1])) == PASSING


def test_hooks_that_never_fire_are_those_that_the_page_says() -> None:
    table = REFERENCE.partition("\n## Hooks\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.rstrip().endswith("| no |")]
    assert {hook for row in rows for hook in re.findall(r"`([\w.]+)`", row.split("|")[1])} == set(
        UNFIRED
    )
