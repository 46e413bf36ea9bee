"""What a manifest promises about its methods is held against each call (PH-BEY-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.config.manifest import parse_manifest
from kaged.config.problems import ConfigFileInvalid
from kaged.wire.errors import InvalidParams
from requirements import requirement

SCHEMAS: dict[str, Any] = {
    "a.b": {
        "params": {
            "type": "object",
            "properties": {"count": {"type": "integer", "minimum": 1}},
            "required": ["count"],
            "additionalProperties": False,
        },
        "result": {"type": "array", "items": {"type": "string"}},
    }
}


@requirement("PH-BEY-01")
async def test_params_are_refused_before_sending_and_results_only_noted(
    lab: PluginLab, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    plugin = await lab.running(
        {"log": str(logs / "seen"), "on": {"a.b": [{"result": 7}], "c.d": [{"echo": True}]}},
        capabilities=[f"write:fs:{logs}"],
        method_schemas=SCHEMAS,
    )
    for params in ({}, {"count": 0}, {"count": 1, "more": 1}):
        with pytest.raises(InvalidParams) as refused:
            await lab.call(plugin, "a.b", **params)
        assert refused.value.number == -32602
    assert "a.b" not in (logs / "seen").read_text(encoding="utf-8")
    assert lab.logged("plugin.result_mismatched") == []
    assert await lab.call(plugin, "a.b", count=1) == 7
    (noted,) = lab.logged("plugin.result_mismatched")
    assert (noted["level"], noted["method"]) == ("warning", "a.b")
    # A method without a schema takes and gives anything.
    assert (await lab.call(plugin, "c.d", anything=[1]))["anything"] == [1]
    assert len(lab.logged("plugin.result_mismatched")) == 1


def test_schemas_of_a_method_that_is_not_there_are_refused() -> None:
    with pytest.raises(ConfigFileInvalid) as refused:
        parse_manifest(
            "name: sample\nversion: 1.0.0\nkaged_api: 1\ndescription: x\ncommand: [./x]\n"
            "capabilities: []\nmethods: [a.b]\nmethod_schemas: {e.f: {params: {type: object}}}\n"
        )
    assert "e.f is no method of this plugin" in refused.value.problems[0].message
