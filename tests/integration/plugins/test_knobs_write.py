"""Knobs of a running plugin: shown, judged twice, written into the project file, delivered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.plugin_lab import PluginLab
from kaged.audit import AuditEvent
from kaged.config import load_project, resolve_agents
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig, ModelTrait
from kaged.config.reading import Loaded
from kaged.config.yamledit import EditRefused
from kaged.plugins.errors import PluginNotFound
from kaged.plugins.knob_write import KnobService
from kaged.plugins.states import PluginState
from kaged.plugins.supervisor import PluginSupervisor
from raising import raises_code
from requirements import requirement

PROJECT = """# our agents
primary:
  model: m   # the usual
  system_prompt: x
  plugins:
    mem:                 # remembers things
      package: "@scope/stub"
      isolation: project
      config:
        budget: 3        # three is plenty
        style: a
    plain: { package: plain }
  subagents:
    coder:
      model: m
      description: writes
      system_prompt: y
      plugins:
        mem: {}
"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "budget": {"type": "integer", "maximum": 8, "default": 1},
        "ratio": {"type": "number", "default": 0.5},
        "style": {"type": "string", "enum": ["a", "b", "c"], "default": "a"},
        "on": {"type": "boolean", "default": True},
        "title": {"type": "string", "default": ""},
        "notes": {"type": "string", "default": ""},
        "model": {"type": ["string", "null"], "default": None},
        "store": {"type": "string", "default": "config:/memory"},
    },
    "additionalProperties": False,
}


def knob(kind: str, field: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "label": field.title(), "binds_to": f"config.{field}", **more}


KNOBS = {
    "budget": knob("int_range", "budget", min=0, max=10, step=1, default=1),
    "ratio": knob("range", "ratio", min=0, max=1, step=0.1, default=0.5),
    "style": knob("enum", "style", values=["a", "b"], default="a", labels={"a": "Plain"}),
    "on": knob("boolean", "on", default=True),
    "title": knob("text", "title", default="", max_length=10, pattern="^[a-z ]*$"),
    "notes": knob("multiline", "notes", default="", max_length=100),
    "model": knob("model_alias", "model", default=None, filter="fast"),
    "store": knob(
        "path",
        "store",
        default="config:/memory",
        prefixes=["config:", "project:"],
        must_exist=True,
    ),
}


class Stage:
    def __init__(self, lab: PluginLab, root: Path) -> None:
        self.lab = lab
        self.root = root / "project"
        self.logs = root / "logs"
        self.logs.mkdir()
        self.logs.chmod(0o777)
        (self.root / ".kaged").mkdir(parents=True)
        self.file = self.root / ".kaged" / "project.yaml"
        self.file.write_text(PROJECT, encoding="utf-8")
        self.supervisor = PluginSupervisor(lab.parts)
        self.service = KnobService(
            self.supervisor,
            lab.parts.audit,
            models=lambda: {"quick": frozenset({ModelTrait.FAST}), "deep": frozenset()},
        )

    async def open(self) -> None:
        grant = [f"write:fs:{self.logs}"]
        common: dict[str, Any] = {"capabilities": grant}
        stub = self.lab.install(
            {"log": str(self.logs / "stub")},
            config_schema=SCHEMA,
            knobs=KNOBS,
            hooks=["pre_compact"],
            **common,
        )
        plain = self.lab.install(
            {"answer": {"name": "plain"}},
            name="plain",
            config_schema={"type": "object", "properties": {"x": {"type": "boolean"}}},
            knobs={"x": knob("boolean", "x", default=False)},
            **common,
        )
        for installed in (stub, plain):
            self.supervisor.register(installed)
            await self.supervisor.enable(installed.name)
            plugin = self.supervisor.get(installed.name)
            assert plugin.state is PluginState.RUNNING, plugin.note
        await self.reload("p")

    async def reload(self, project_id: str) -> None:
        loaded = load_project(self.root)
        tree = resolve_agents(loaded, Loaded(DaemonConfig()), Loaded(LocalConfig()))
        admitted = await self.supervisor.load_project(project_id, tree)
        assert admitted.refused == ()

    async def write(self, knob: str, value: Any, agent: str = "primary") -> Any:
        return await self.service.write(
            "p", agent, "stub", knob, value, request_id="req_1", reload=self.reload
        )

    def updates(self) -> list[dict[str, Any]]:
        lines = (self.logs / "stub").read_text(encoding="utf-8").splitlines()
        messages = [json.loads(line) for line in lines]
        return [m["params"]["config"] for m in messages if m.get("method") == "config.update"]

    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")


@pytest.fixture
async def stage(lab: PluginLab, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(lab, tmp_path)
    await made.open()
    yield made
    await made.supervisor.stop_all()


@requirement("PH-KNOB-21", "PH-KNOB-22")
async def test_a_knob_is_written_audited_and_delivered_once(stage: Stage) -> None:
    before = len(stage.updates())
    change = await stage.write("budget", 5)
    assert (change.old, change.new, change.delivered) == (3, 5, True)
    assert stage.text() == PROJECT.replace(
        "budget: 3        # three is plenty", "budget: 5        # three is plenty"
    )
    assert [update["budget"] for update in stage.updates()[before:]] == [5]
    (event,) = await stage.lab.seen("plugin.knob_write")
    assert event[1] == {
        "name": "stub",
        "knob": "budget",
        "agent_path": "primary",
        "request_id": "req_1",
    }
    values = stage.service.values("p", "primary", "stub")
    assert isinstance(values["budget"], dict)
    assert values["budget"]["value"] == 5
    assert values["budget"]["is_set"] is True


@requirement("PH-KNOB-20")
async def test_a_value_must_please_the_knob_and_the_schema(stage: Stage) -> None:
    for knob_name, value, why in (
        ("budget", 9, "does not fit the plugin's config"),  # knob says 10, schema 8
        ("style", "c", "one of a, b"),  # schema says c, knob does not
        ("budget", -1, "from 0 to 10"),
        ("budget", "5", "whole number"),
        ("on", "yes", "true or false"),
        ("title", "far too long a title", "at most 10"),
        ("title", "UPPER", "must match"),
        ("model", "deep", "fast model"),
        ("model", "nobody", "local.toml"),
        ("store", "/etc", "must begin with"),
        ("store", "project:/nothing", "must exist"),
        ("store", "project:/../x", "Store "),
    ):
        with raises_code("knob_value_refused", match=why):
            await stage.write(knob_name, value)
    assert stage.text() == PROJECT
    assert await stage.lab.seen("plugin.knob_write") == []
    (stage.root / "docs").mkdir()
    for knob_name, value in (
        ("store", "project:/docs"),
        ("model", "quick"),
        ("model", None),
        ("notes", "two\nlines: # not a comment"),
        ("ratio", 0.25),
        ("on", False),
    ):
        await stage.write(knob_name, value)
        assert stage.updates()[-1][knob_name] == value
    assert stage.text().startswith("# our agents\nprimary:\n  model: m   # the usual\n")


async def test_a_subagent_gets_a_value_of_its_own(stage: Stage) -> None:
    coder = "primary.subagents.coder"
    await stage.write("budget", 7, coder)
    assert stage.updates()[-1]["budget"] == 7
    assert "mem: { config: { budget: 7 } }" in stage.text()
    primary = stage.service.values("p", "primary", "stub")
    assert isinstance(primary["budget"], dict)
    assert primary["budget"]["value"] == 3


async def test_what_does_not_exist_cannot_be_written(stage: Stage) -> None:
    with raises_code("knob_not_found", match="no knob"):
        await stage.write("nothing", 1)
    with raises_code("knob_not_found", match="does not declare"):
        await stage.write("budget", 1, "primary.subagents.nobody")
    with pytest.raises(PluginNotFound):
        stage.service.schema("nobody")
    assert stage.text() == PROJECT


async def test_a_file_that_a_program_cannot_change_stays_and_nothing_is_audited(
    stage: Stage,
) -> None:
    text = PROJECT.replace("      config:\n", "      config: &shared\n").replace(
        "mem: {}", "mem: { config: *shared }"
    )
    stage.file.write_text(text, encoding="utf-8")
    await stage.reload("p")
    with pytest.raises(EditRefused, match="alias"):
        await stage.write("budget", 6, "primary.subagents.coder")
    assert stage.text() == text
    assert await stage.lab.seen("plugin.knob_write") == []


@requirement("PH-KNOB-22")
async def test_a_knob_that_cannot_be_put_on_record_is_not_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def full(event: AuditEvent) -> None:
        assert event.name == "plugin.knob_write"
        seen.append(stage.text())
        raise OSError("no space left")

    monkeypatch.setattr(stage.lab.parts.audit, "record", full)
    with pytest.raises(OSError, match="no space left"):
        await stage.write("budget", 6)
    assert seen == [PROJECT]  # nothing was written before it was on record
    assert stage.text() == PROJECT


async def test_a_stopped_plugin_gets_the_value_later(stage: Stage) -> None:
    await stage.supervisor.disable("stub")
    change = await stage.write("budget", 6)
    assert not change.delivered
    assert "not running" in change.note
    assert "budget: 6" in stage.text()


@requirement("PH-KNOB-23")
async def test_the_compaction_view_has_observers_and_compactors_only(stage: Stage) -> None:
    view = stage.service.compaction_view("p", "primary")
    assert [entry["plugin"] for entry in view] == ["stub"]
    knobs = view[0]["knobs"]
    assert isinstance(knobs, dict)
    assert set(knobs) == set(KNOBS)
    assert stage.service.compaction_view("p", "nobody") == []


@requirement("PH-KNOB-24")
async def test_a_renderer_that_knows_only_the_schema_draws_every_type(stage: Stage) -> None:
    answer: dict[str, Any] = json.loads(json.dumps(stage.service.schema("stub")))
    drawn = {name: render(schema) for name, schema in answer.items()}
    assert drawn == {
        "budget": "Budget: <slider 0..10 by 1 at 1>",
        "ratio": "Ratio: <slider 0..1 by 0.1 at 0.5>",
        "style": "Style: <select Plain|b at a>",
        "on": "On: <toggle at True>",
        "title": "Title: <input max 10 like ^[a-z ]*$ at ''>",
        "notes": "Notes: <textarea max 100 at ''>",
        "model": "Model: <models fast at None>",
        "store": "Store: <path config:|project: existing at config:/memory>",
    }


def render(schema: dict[str, Any]) -> str:
    at = schema["default"]
    match schema["type"]:
        case "range" | "int_range":
            low, high = f"{schema['min']:g}", f"{schema['max']:g}"
            inner = f"slider {low}..{high} by {schema['step']:g} at {at:g}"
        case "enum":
            labels = [schema["labels"].get(value, value) for value in schema["values"]]
            inner = f"select {'|'.join(labels)} at {at}"
        case "boolean":
            inner = f"toggle at {at}"
        case "text":
            inner = f"input max {schema['max_length']} like {schema['pattern']} at {at!r}"
        case "multiline":
            inner = f"textarea max {schema['max_length']} at {at!r}"
        case "model_alias":
            inner = f"models {schema['filter']} at {at}"
        case _:
            there = "existing" if schema["must_exist"] else "any"
            inner = f"path {'|'.join(schema['prefixes'])} {there} at {at}"
    return f"{schema['label']}: <{inner}>"
