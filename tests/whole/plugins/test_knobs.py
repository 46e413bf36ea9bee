"""Knobs: declared in a manifest, shown over HTTP, judged twice, written into the project file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import Ear, as_json, heard, manifest_folder, preview, problems
from whole.harness.project import Project

Maker = Callable[..., PluginFolder]
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
SECRETS = {"type": "object", "properties": {"api_token": {"type": "string"}}}


def knob(kind: str, field: str, **more: Any) -> dict[str, Any]:
    """Return a knob; None leaves a key out."""
    made = {"type": kind, "label": field.title(), "binds_to": f"config.{field}", **more}
    return {key: value for key, value in made.items() if value is not None or key == "default"}


RATIO = knob("range", "ratio", min=0, max=1, step=0.1, default=0.5)
BUDGET = knob("int_range", "budget", min=0, max=10, step=1, default=1)
STYLE = knob("enum", "style", values=["a", "b"], default="a", labels={"a": "Plain"})
ON = knob("boolean", "on", default=True, description="Whether it is on.")
TITLE = knob("text", "title", default="", max_length=10, pattern="^[a-z ]*$")
NOTES = knob("multiline", "notes", default="", max_length=20)
MODEL = knob("model_alias", "model", default=None, filter="fast")
STORE = knob(
    "path", "store", default="config:/memory", prefixes=["config:", "project:"], must_exist=True
)
KNOBS = {
    "budget": BUDGET, "ratio": RATIO, "style": STYLE, "on": ON, "title": TITLE, "notes": NOTES,
    "model": MODEL, "store": STORE,
}  # fmt: skip


def less(one: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a knob without a key."""
    return {name: value for name, value in one.items() if name != key}


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator has a fast model beside the usual one."""
    local = model.local_toml() + model.local_toml("quick", traits=["fast"])
    made = Daemon(module_path / "h", local=local)
    made.start()
    yield made
    made.close()


REFUSED: dict[str, list[tuple[str, Any]]] = {
    "PH-KNOB-03": [("x", {**ON, "type": "color"}), ("x", {**ON, "type": "dial"})],
    "PH-KNOB-04": [("x", less(RATIO, key)) for key in ("min", "max", "step", "default")]
    + [("x", {**RATIO, key: "1"}) for key in ("min", "max", "step", "default")],
    "PH-KNOB-05": [("x", less(BUDGET, key)) for key in ("min", "max", "step", "default")]
    + [("x", {**BUDGET, "min": 1.5}), ("x", {**BUDGET, "default": "3"})],
    "PH-KNOB-06": [
        ("x", less(STYLE, "values")),
        ("x", less(STYLE, "default")),
        ("x", {**STYLE, "values": [1, 2]}),
        ("x", {**STYLE, "labels": ["Plain"]}),
    ],
    "PH-KNOB-07": [("x", {**ON, "default": "yes"}), ("x", less(ON, "default"))],
    "PH-KNOB-08": [
        ("x", {**TITLE, "pattern": "("}),
        ("x", {**TITLE, "max_length": "10"}),
        ("x", less(TITLE, "default")),
        ("x", {**TITLE, "default": 5}),
    ],
    "PH-KNOB-09": [("x", {**NOTES, "default": 5}), ("x", {**NOTES, "max_length": 1.5})],
    "PH-KNOB-10": [("x", {**MODEL, "filter": "slow"}), ("x", less(MODEL, "default"))],
    "PH-KNOB-11": [
        ("x", {**STORE, "prefixes": ["file:"]}),
        ("x", less(STORE, "prefixes")),
        ("x", {**STORE, "must_exist": "yes"}),
        ("x", less(STORE, "default")),
    ],
    "PH-KNOB-12": [(name, ON) for name in ("Recall-Budget", "1x", "a b", "a.b", "")],
    "PH-KNOB-13": [("x", less(ON, "type"))],
    "PH-KNOB-14": [("x", less(ON, "label")), ("x", {**ON, "label": "x" * 65})],
    "PH-KNOB-15": [("x", {**ON, "description": "x" * 281}), ("x", {**ON, "description": 5})],
    "PH-KNOB-16": [
        ("x", less(ON, "binds_to")),
        ("x", {**ON, "binds_to": "recall_budget"}),
        ("x", {**ON, "binds_to": "on"}),
    ],
    "PH-AMB-42": [("x", {**ON, "binds_to": "config.a.b"})],
    "PH-KNOB-25": [
        ("x", {**BUDGET, "max": 20, "default": 30}),
        ("x", {**BUDGET, "min": 11}),
        ("x", {**RATIO, "step": 0}),
        ("x", {**RATIO, "step": -0.1}),
        ("x", {**RATIO, "min": 2, "default": 2}),
        ("x", {**STYLE, "default": "z"}),
        ("x", {**TITLE, "default": "UPPER"}),
        ("x", {**TITLE, "default": "much too long"}),
        ("x", {**STORE, "default": "project:/x", "prefixes": ["config:"]}),
    ],
    "PH-KNOB-26": [("x", {**STYLE, "labels": {"z": "Foreign"}})],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        pytest.param(name, wrong, marks=whole(row), id=f"{row}-{number}")
        for row, cases in REFUSED.items()
        for number, (name, wrong) in enumerate(cases)
    ],
)
def test_a_knob_with_a_mistake_is_refused_at_its_place(
    daemon: Daemon, tmp_path: Path, name: str, wrong: Any
) -> None:
    text = as_json(config_schema=SCHEMA, knobs={name: wrong})
    found = problems(daemon, manifest_folder(tmp_path / "wrong", text))
    assert found
    assert all(where.startswith("knobs") for where, _ in found), found


@whole("PH-KNOB-03", "PH-KNOB-01")
@pytest.mark.parametrize("name", list(KNOBS))
def test_each_of_the_eight_types_is_accepted(daemon: Daemon, tmp_path: Path, name: str) -> None:
    text = as_json(config_schema=SCHEMA, knobs={name: KNOBS[name]})
    warned = preview(daemon, manifest_folder(tmp_path / "right", text))["warnings"]
    assert bool(warned) is (name == "style"), "its field knows one word more"


@whole("PH-KNOB-06", "PH-KNOB-14", "PH-KNOB-15")
@pytest.mark.parametrize(
    "good",
    [
        less(STYLE, "labels"),
        {**ON, "label": "x" * 64},
        {**ON, "description": "x" * 280},
        less(ON, "description"),
        {**MODEL, "filter": "reasoning"},
        less(MODEL, "filter"),
        less(less(TITLE, "pattern"), "max_length"),
    ],
)
def test_what_is_optional_may_be_left_out_and_lengths_are_exact(
    daemon: Daemon, tmp_path: Path, good: Any
) -> None:
    text = as_json(config_schema=SCHEMA, knobs={"x": good})
    assert preview(daemon, manifest_folder(tmp_path / "right", text))["name"] == "stub"


@whole("PH-MANI-31", "PH-KNOB-17", "PH-KNOB-18", "PH-AMB-42")
@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("config.nothing", "knob_binds_to_unknown_field"),
        ("system_config.api_token", "knob_binds_to_system_config"),
        ("config.api_token", "knob_binds_to_system_config"),
        ("on", "invalid_value"),
    ],
)
def test_a_knob_binds_to_a_committed_field_that_exists(
    daemon: Daemon, tmp_path: Path, field: str, code: str
) -> None:
    text = as_json(
        config_schema=SCHEMA, system_config_schema=SECRETS, knobs={"x": {**ON, "binds_to": field}}
    )
    found = problems(daemon, manifest_folder(tmp_path / "wrong", text))
    assert [one for _, one in found] == [code]


@whole("PH-MANI-32", "PH-KNOB-19", "PH-AMB-42")
def test_a_knob_that_does_not_fit_its_field_is_a_warning_until_it_is_turned(
    daemon: Daemon, plugin: Maker, project: Project
) -> None:
    fields = {
        "type": "object",
        "properties": {"style": {"type": "string", "enum": ["a", "c"]}, "on": {"type": "string"}},
    }
    one = plugin(None, config_schema=fields, knobs={"style": STYLE, "on": ON})
    warned = preview(daemon, one.root)["warnings"]
    assert len(warned) == 2, warned
    assert all(any(name in text for text in warned) for name in ("knobs.style", "knobs.on"))
    assert one.run()["state"] == "running"
    project.describe(plugins={one.name: {"package": one.name}})
    project.reload()
    text = project.read(".kaged/project.yaml")
    for name, value in (("style", "b"), ("on", True)):
        body = {"project_id": project.id, "value": value}
        assert daemon.error("PUT", f"/plugins/{one.name}/knobs/{name}", body)["status"] == 422
    assert project.read(".kaged/project.yaml") == text
    body = {"project_id": project.id, "value": "a"}
    daemon.ask("PUT", f"/plugins/{one.name}/knobs/style", body)


class Turned:
    """A running plugin with all eight knobs, on a project of its own."""

    def __init__(self, daemon: Daemon, one: PluginFolder, project: Project) -> None:
        self.daemon = daemon
        self.one = one
        self.project = project
        self.ear: Ear = heard(
            one, {"on": {"a.b": [{"echo": True}]}}, config_schema=SCHEMA, knobs=KNOBS,
            hooks=["pre_compact"],
        )  # fmt: skip
        assert one.run()["state"] == "running", one.state()
        self.describe()
        wait_for(lambda: self.ear.configs()[-1]["budget"] == 3)

    def describe(self) -> None:
        """Write the project file as a person would, with comments."""
        self.project.write(
            ".kaged/project.yaml",
            f"# the boats\nversion: 1\nproject: {self.project.root.name}\nprimary:\n"
            "  model: default  # any\n  system_prompt: x\n  plugins:\n    memory:\n"
            f"      package: {self.one.name}\n      isolation: project\n      config:\n"
            "        budget: 3  # three is plenty\n        style: a\n"
            "  subagents:\n    kid:\n      model: default\n      system_prompt: y\n"
            "      plugins:\n        memory: {}\n",
        )
        self.project.reload()

    @property
    def text(self) -> str:
        """The project file."""
        return self.project.read(".kaged/project.yaml")

    def body(self, value: Any, agent: str = "primary") -> dict[str, Any]:
        """Return what a settings page sends."""
        return {"project_id": self.project.id, "agent_path": agent, "value": value}

    def write(self, name: str, value: Any, agent: str = "primary") -> dict[str, Any]:
        """Turn a knob."""
        path = f"/plugins/{self.one.name}/knobs/{name}"
        got: dict[str, Any] = self.daemon.ask("PUT", path, self.body(value, agent))
        return got

    def refused(self, name: str, value: Any) -> dict[str, Any]:
        """Turn a knob where that is not allowed; returns the error."""
        path = f"/plugins/{self.one.name}/knobs/{name}"
        return self.daemon.error("PUT", path, self.body(value))

    def values(self, agent: str = "primary") -> dict[str, Any]:
        """Return the values in force."""
        query = f"project_id={self.project.id}&agent_path={agent}"
        shown = self.daemon.get(f"/plugins/{self.one.name}/knobs?{query}")
        return {name: one["value"] for name, one in shown.items()}


@pytest.fixture
def turned(daemon: Daemon, plugin: Maker, project: Project) -> Turned:
    """Return a running plugin with all eight knobs."""
    return Turned(daemon, plugin(), project)


@whole("PH-KNOB-02", "PH-KNOB-24", "PH-KNOB-01")
def test_the_knobs_over_http_are_the_manifests_and_enough_to_draw_a_page(turned: Turned) -> None:
    shown = turned.daemon.get(f"/plugins/{turned.one.name}/knobs")
    assert list(shown) == list(KNOBS)
    for name, declared in KNOBS.items():
        assert shown[name] == {"description": "", **declared}, name
    missing = turned.daemon.error("GET", "/plugins/nobody/knobs")
    assert (missing["status"], missing["code"]) == (404, "plugin_not_found")
    page = [control(name, one) for name, one in shown.items()]
    assert page == [
        "Budget: slider 0..10 step 1 = 1",
        "Ratio: slider 0..1 step 0.1 = 0.5",
        "Style: select (Plain), b = a",
        "On: toggle = True (Whether it is on.)",
        "Title: line of 10 like ^[a-z ]*$ = ",
        "Notes: lines of 20 = ",
        "Model: fast model = None",
        "Store: path config: project: that exists = config:/memory",
    ]


def control(name: str, one: Mapping[str, Any]) -> str:
    """Draw a knob from what the API says, knowing nothing about its plugin."""
    del name
    kind = one["type"]
    if kind in ("range", "int_range"):
        drawn = f"slider {one['min']}..{one['max']} step {one['step']}"
    elif kind == "enum":
        labels = one.get("labels", {})
        words = [f"({labels[word]})" if word in labels else word for word in one["values"]]
        drawn = f"select {', '.join(words)}"
    elif kind == "boolean":
        drawn = "toggle"
    elif kind == "text":
        drawn = f"line of {one['max_length']} like {one['pattern']}"
    elif kind == "multiline":
        drawn = f"lines of {one['max_length']}"
    elif kind == "model_alias":
        drawn = f"{one['filter']} model"
    else:
        drawn = f"path {' '.join(one['prefixes'])}{' that exists' if one['must_exist'] else ''}"
    help_text = f" ({one['description']})" if one["description"] else ""
    return f"{one['label']}: {drawn} = {one['default']}{help_text}"


@whole("PH-KNOB-21", "PH-KNOB-22", "PH-AUD-30")
def test_a_turn_is_written_with_comments_kept_on_record_and_delivered_once(turned: Turned) -> None:
    before, sent = turned.text, turned.ear.configs()
    done = turned.write("budget", 5)
    assert (done["old"], done["new"], done["delivered"]) == (3, 5, True)
    assert turned.text == before.replace("budget: 3", "budget: 5")
    exactly(len(sent) + 1, turned.ear.configs)
    assert turned.ear.configs()[-1]["budget"] == 5
    (row,) = exactly(1, lambda: turned.one.audit("plugin.knob_write"))
    assert row["data"] == {
        "name": turned.one.name,
        "knob": "budget",
        "agent_path": "primary",
        "request_id": row["request_id"],
    }
    turned.write("notes", "one\ntwo")
    assert yaml.safe_load(turned.text)["primary"]["plugins"]["memory"]["config"] == {
        "budget": 5,
        "style": "a",
        "notes": "one\ntwo",
    }
    exactly(2, lambda: turned.one.audit("plugin.knob_write"))


@whole("PH-KNOB-21", "PH-AMB-58")
def test_a_turn_for_one_agent_is_written_at_that_agent(turned: Turned) -> None:
    turned.write("budget", 7, "primary.subagents.kid")
    assert turned.values("primary.subagents.kid")["budget"] == 7
    assert turned.values()["budget"] == 3
    read = yaml.safe_load(turned.text)["primary"]
    assert read["subagents"]["kid"]["plugins"]["memory"]["config"] == {"budget": 7}
    assert read["plugins"]["memory"]["config"]["budget"] == 3
    (row,) = turned.one.audit("plugin.knob_write")
    assert row["data"]["agent_path"] == "primary.subagents.kid"


@whole("PH-KNOB-20", "PH-KNOB-08", "PH-KNOB-09")
def test_both_the_knob_and_the_schema_may_refuse_and_nothing_is_changed(turned: Turned) -> None:
    before, sent = turned.text, turned.ear.configs()
    for name, values in (
        ("budget", [11, -1, 9, 2.5, "3", True, None]),
        ("ratio", [1.5, -0.1, "0.5", None]),
        ("style", ["c", "z", 1]),
        ("on", ["yes", 1, None]),
        ("title", ["much too long", "UPPER", "a\nb", 5]),
        ("notes", ["x" * 21, 5]),
        ("model", ["nothing-like-it", 5, "default"]),
        ("store", ["/etc", "memory", "file:/x", "config:/../x", "project:/not-there"]),
    ):
        for value in values:
            refused = turned.refused(name, value)
            assert refused["status"] in (400, 422), (name, value, refused)
    assert turned.daemon.error("PUT", f"/plugins/{turned.one.name}/knobs/nothing", turned.body(1))[
        "status"
    ] in (404, 422)
    assert turned.text == before
    assert turned.ear.configs() == sent
    assert turned.one.audit("plugin.knob_write") == []


@whole("PH-KNOB-09", "PH-KNOB-10", "PH-KNOB-11")
def test_values_within_the_rules_are_taken_for_every_type(turned: Turned) -> None:
    (turned.project.root / "docs").mkdir()
    good: dict[str, Any] = {
        "budget": 8, "ratio": 0.7, "style": "b", "on": False, "title": "a title",
        "notes": "a\nb\nc", "model": "quick", "store": "project:/docs",
    }  # fmt: skip
    for name, value in good.items():
        turned.write(name, value)
    assert turned.values() == good
    turned.write("model", None)
    assert turned.values()["model"] is None
    turned.one.call(x=1)
    assert turned.ear.configs()[-1] == {**good, "model": None}


@whole("PH-KNOB-22")
def test_a_turn_is_on_record_before_the_file_is_touched(turned: Turned) -> None:
    before, sent = turned.text, turned.ear.configs()
    folder = turned.project.root / ".kaged"
    folder.chmod(0o500)  # the write fails; the row stands before it
    failed = turned.refused("budget", 5)
    folder.chmod(0o700)
    assert failed["status"] >= 400
    exactly(1, lambda: turned.one.audit("plugin.knob_write"))
    assert (turned.text, turned.ear.configs()) == (before, sent)


@whole("PH-KNOB-23")
def test_an_agents_compaction_settings_show_the_knobs_of_who_takes_part(
    daemon: Daemon, plugin: Maker, project: Project
) -> None:
    common: dict[str, Any] = {"config_schema": SCHEMA, "knobs": {"budget": BUDGET}}
    squeeze = plugin(None, roles=["compactor"], hooks=["pre_compact"], **common)
    watch = plugin(None, hooks=["post_compact"], **common)
    plain = plugin(None, **common)
    for one in (squeeze, watch, plain):
        one.run()
    declared = {
        one.name: {"package": one.name, "config": {"budget": 3}} for one in (squeeze, watch, plain)
    }
    kid = {"model": "default", "system_prompt": "x", "plugins": {watch.name: declared[watch.name]}}
    project.describe(plugins=declared, subagents={"kid": kid})
    project.reload()
    agents = {one["path"]: one for one in project.get("")["tree"]["agents"]}
    shown = {
        path: {one["plugin"]: one for one in agent["compaction"]["plugins"]}
        for path, agent in agents.items()
    }
    assert set(shown["primary"]) == {squeeze.name, watch.name}
    assert set(shown["primary.subagents.kid"]) == {watch.name}
    seen = shown["primary"][squeeze.name]
    assert seen["roles"] == ["compactor"]
    assert (seen["knobs"]["budget"]["value"], seen["knobs"]["budget"]["max"]) == (3, 10)


@whole("PH-KNOB-21", "PH-KNOB-02")
def test_knobs_are_shown_and_turned_by_command(turned: Turned) -> None:
    name, slug = turned.one.name, turned.project.id
    shown = turned.daemon.cli("plugin", "knobs", name, "--project", slug, "--json").json
    assert shown["budget"]["value"] == 3
    out = turned.daemon.cli("plugin", "knobs", name, "--project", slug, "--set", "budget=6").out
    assert "budget: 3 → 6" in out
    assert "budget: 6  # three is plenty" in turned.text
    wrong = turned.daemon.cli(
        "plugin", "knobs", name, "--project", slug, "--set", "budget=11", code=None
    )
    assert wrong.code != 0
    assert json.dumps(turned.values()["budget"]) == "6"


@pytest.mark.parametrize(
    ("name", "value", "status", "code"),
    [("nothing", 1, 404, "knob_not_found"), ("budget", 99, 422, "knob_value_refused")],
)
def test_a_turn_that_no_knob_takes_has_a_code_and_changes_nothing(
    turned: Turned, name: str, value: Any, status: int, code: str
) -> None:
    before = turned.text
    refused = turned.refused(name, value)
    assert (refused["status"], refused["code"]) == (status, code)
    assert turned.text == before


def test_a_file_that_cannot_be_changed_now_is_left_alone_and_says_why(turned: Turned) -> None:
    folder = turned.project.root / ".kaged"
    before = turned.text
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # as another program does that writes there
        assert turned.refused("budget", 5)["code"] == "config_busy"
    finally:
        os.close(handle)
    folder.chmod(0o500)
    assert turned.refused("budget", 5)["code"] == "config_write_failed"
    folder.chmod(0o700)
    assert turned.text == before
    turned.write("budget", 5)
    # A value that stands in two places is not changed in one of them.
    shared = turned.text.replace("config:\n", "config: &here\n").replace(
        "memory: {}", "memory: {config: *here}"
    )
    turned.project.write(".kaged/project.yaml", shared)
    turned.project.reload()
    path = f"/plugins/{turned.one.name}/knobs/budget"
    body = turned.body(6, "primary.subagents.kid")
    assert turned.daemon.error("PUT", path, body)["code"] == "config_edit_refused"
    assert turned.text == shared
