"""A plugin's manifest, key by key, as the daemon reads it before it takes anything in.

What is wrong is named with its path, and nothing of a refused plugin is kept. What is right is
shown to the operator, or is seen in what the plugin then does.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import (
    TOOL,
    as_json,
    kept,
    manifest_folder,
    preview,
    problems,
    refusal,
)
from whole.harness.project import Project

LONG = "a" * 64
OBJECT = {"type": "object"}
HOOKS = ["on_session_start", "on_session_idle", "pre_compact", "post_compact"]


def tool(**changes: Any) -> list[dict[str, Any]]:
    """Return a list of one tool with changes; None leaves a key out."""
    merged = {**TOOL, **changes}
    return [{key: value for key, value in merged.items() if value is not None}]


REFUSED: dict[str, Sequence[tuple[Mapping[str, Any], str]]] = {
    "PH-MANI-02": [
        ({"name": wrong}, "name")
        for wrong in (None, "Memory", "1x", "-x", "a_b", LONG + "a", "", 5, "a.b")
    ],
    "PH-MANI-04": [
        ({"version": wrong}, "version")
        for wrong in (None, "1.4", "latest", "v1.0.0", 1, [1], "1.4.2.1", "")
    ],
    "PH-MANI-05": [({"kaged_api": wrong}, "kaged_api") for wrong in (None, 2, "1", 1.5, True)],
    "PH-AMB-12": [({"kaged_api": wrong}, "kaged_api") for wrong in (0, -1, 2, 99)],
    "PH-MANI-06": [
        ({"description": wrong}, "description")
        for wrong in (None, "x" * 201, "Two\nlines.", "", 5)
    ],
    "PH-MANI-07": [({"author": wrong}, "author") for wrong in (5, ["Ann"], True)],
    "PH-MANI-08": [({"license": wrong}, "license") for wrong in (5, ["MIT"])],
    "PH-MANI-09": [({"homepage": wrong}, "homepage") for wrong in ("not a url", "ftp://x", 5)],
    "PH-MANI-10": [
        ({"command": wrong}, "command") for wrong in (None, [], "./main.py", [1], [""])
    ],
    "PH-MANI-12": [
        ({"env": wrong}, "env") for wrong in ({"A": 1}, {"A": True}, {"a b": "x"}, ["A"])
    ],
    "PH-MANI-13": [({"capabilities": wrong}, "capabilities") for wrong in (None, "net:*", ["x"])],
    "PH-MANI-15": [({"hooks": wrong}, "hooks") for wrong in (["on_compact"], "pre_compact", [1])],
    "PH-MANI-16": [
        ({"tools": wrong}, "tools")
        for wrong in (tool(name="a.b"), tool(parameters_schema=None), tool(extra=1), ["retain"])
    ],
    "PH-MANI-18": [
        ({"notifications": wrong}, "notifications")
        for wrong in (["Catalog"], ["kaged.x"], "catalog.updated")
    ],
    "PH-MANI-19": [
        ({"config_schema": wrong}, "config_schema")
        for wrong in (5, {"type": "objct"}, {"properties": {"a": {"pattern": "("}}})
    ],
    "PH-MANI-20": [
        ({"system_config_schema": wrong}, "system_config_schema")
        for wrong in (5, {"type": "objct"}, {"properties": {"a": {"minimum": "y"}}})
    ],
    "PH-MANI-22": [({"knobs": {"on": {"type": "boolean"}}}, "knobs"), ({"knobs": []}, "knobs")],
    "PH-MANI-23": [
        ({"shutdown_timeout_sec": wrong}, "shutdown_timeout_sec") for wrong in (31, "5", 5.5)
    ],
    "PH-MANI-24": [
        ({"health_interval_sec": wrong}, "health_interval_sec") for wrong in (4, 301, 30.5)
    ],
    "PH-MANI-25": [({"hook_timeout_sec": wrong}, "hook_timeout_sec") for wrong in (61, "10")],
    "PH-MANI-35": [
        ({key: wrong}, key)
        for key, low in (("shutdown_timeout_sec", -1), ("hook_timeout_sec", 0))
        for wrong in (low, -5, True)
    ]
    + [({"health_interval_sec": True}, "health_interval_sec")],
    "PH-MANI-30": [({"roles": ["compactor"], "hooks": ["post_compact"]}, "roles")],
    "PH-ROLE-21": [
        ({key: value, **more}, "roles")
        for key, value in (("roles", ["compactor"]), ("role", "compactor"))
        for more in ({"hooks": ["post_compact"]}, {})
    ],
    "PH-ROLE-01": [
        ({"roles": wrong, "hooks": ["pre_compact"]}, "roles")
        for wrong in (["auditor"], "observer", ["observer", "observer"], [1])
    ],
    "PH-AMB-53": [({"roles": [], "hooks": ["pre_compact"]}, "roles")],
    "PH-AMB-06": [
        ({"role": "observer", "roles": ["compactor"], "hooks": ["pre_compact"]}, "roles")
    ],
    "PH-AMB-02": [
        ({"capabilities": [wrong]}, "capabilities[0]")
        for wrong in ({"net": ["x"]}, {"read": []}, {"net": [], "x": []}, {})
    ],
    "PH-AMB-45": [
        ({"capabilities": [none, "net:h:1"]}, "capabilities") for none in ("net:[]", {"net": []})
    ],
    "PH-AMB-05": [
        ({"capabilities": [wrong]}, "capabilities[0]")
        for wrong in ("read:fs:config:/../x", "read:fs:memory", "read:fs:project:/a/../b")
    ],
    "PH-TOOL-02": [
        ({"tools": tool(name=wrong)}, "tools") for wrong in ("Retain", "a.b", "list-tags", "")
    ],
    "PH-TOOL-04": [({"tools": tool(name=wrong)}, "tools") for wrong in ("other.tool", "stub.say")],
    "PH-TOOL-11": [
        ({"tools": wrong}, "tools")
        for wrong in (
            tool(name=None),
            tool(description=None),
            tool(parameters_schema=None),
            tool(description=""),
            tool(parameters_schema={"type": "objct"}),
            tool(parameters_schema={"$ref": "http://127.0.0.1:9/s"}),
        )
    ],
    "PH-TOOL-14": [({"tools": [*tool(), *tool(description="Again.")]}, "tools[1].name")],
    "PH-AMB-21": [({"name": "x", "tools": tool()}, "name")],
    "PH-AMB-22": [
        ({"methods": [wrong]}, "methods[0]")
        for wrong in ("config.update", "projects.activated", "projects.deactivated")
    ]
    + [
        ({"name": "presets", "tools": tool(name="list"), "methods": ["presets.list"]}, "tools[0]"),
        ({"name": "config", "tools": tool(name="update")}, "tools[0]"),
    ],
    "PH-AMB-26": [
        ({"system_config_schema": {**OBJECT, "properties": {wrong: {}}}}, "system_config_schema")
        for wrong in ("installed", "local", "enabled", "grants")
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        pytest.param(changes, path, marks=whole(row), id=f"{row}-{number}")
        for row, cases in REFUSED.items()
        for number, (changes, path) in enumerate(cases)
    ],
)
def test_a_manifest_with_a_mistake_is_refused_at_its_place_and_nothing_is_kept(
    daemon: Daemon, tmp_path: Path, changes: dict[str, Any], path: str
) -> None:
    found = problems(daemon, manifest_folder(tmp_path / "wrong", as_json(**changes)))
    assert found, changes
    assert all(where.startswith(path) for where, _ in found), (changes, found)


TAKEN: dict[str, Sequence[Mapping[str, Any]]] = {
    "PH-MANI-02": [{"name": good} for good in ("a", "oh-my-pi", "x2", LONG)],
    "PH-MANI-04": [{"version": "1.4.2"}, {"version": "0.1.0-rc.1"}],
    "PH-MANI-06": [{"description": "x" * 200}],
    "PH-MANI-07": [{}, {"author": "Ann"}],
    "PH-MANI-09": [{"homepage": "https://example.org/x"}],
    "PH-MANI-13": [{"capabilities": []}, {"capabilities": ["net:h:1", "kaged:storage:write"]}],
    "PH-MANI-15": [{"hooks": HOOKS}, *({"hooks": [one]} for one in HOOKS), {"hooks": []}],
    "PH-MANI-16": [{"tools": tool()}, {"tools": []}],
    "PH-MANI-17": [{"methods": []}, {}, {"methods": ["presets.list", "a.b.c.d"]}],
    "PH-AMB-03": [{}],
    "PH-MANI-18": [{}, {"notifications": ["catalog.updated"]}],
    "PH-MANI-23": [{"shutdown_timeout_sec": good} for good in (0, 5, 30)],
    "PH-MANI-24": [{"health_interval_sec": good} for good in (5, 30, 300)],
    "PH-MANI-25": [{"hook_timeout_sec": good} for good in (1, 10, 60)],
    "PH-ROLE-01": [
        {"roles": good, "hooks": ["pre_compact"]}
        for good in (["observer"], ["compactor"], ["observer", "compactor"])
    ],
    "PH-AMB-06": [{"role": good, "hooks": HOOKS} for good in ("compactor", ["observer"])],
    "PH-AMB-53": [{"roles": []}, {"roles": ["compactor"], "hooks": HOOKS}],
    "PH-TOOL-02": [{"tools": tool(name=good)} for good in ("retain", "list_tags")],
    "PH-TOOL-06": [{"name": "memory", "tools": tool()}],
    "PH-AMB-21": [{"name": "x"}],
    "PH-CONF-04": [
        {},
        {"config_schema": OBJECT},
        {"system_config_schema": OBJECT},
        {"config_schema": OBJECT, "system_config_schema": OBJECT},
    ],
    "PH-AMB-12": [{"kaged_api": 1}],
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, marks=whole(row), id=f"{row}-{number}")
        for row, cases in TAKEN.items()
        for number, changes in enumerate(cases)
    ],
)
def test_a_manifest_within_the_rules_is_shown_without_a_word(
    daemon: Daemon, tmp_path: Path, changes: dict[str, Any]
) -> None:
    shown = preview(daemon, manifest_folder(tmp_path / "right", as_json(**changes)))
    assert shown["warnings"] == []
    shown["capabilities"] = [one["text"] for one in shown["capabilities"]]
    for key, value in changes.items():
        if key in shown:
            assert shown[key] == value, key


@whole("PH-MANI-28")
def test_the_published_schema_and_the_daemon_say_the_same(daemon: Daemon, tmp_path: Path) -> None:
    schema = daemon.cli("schema", "plugin-manifest-v1").json
    published = Draft202012Validator(schema)
    # Rules between fields are the daemon's alone; the manifest's page says which these are.
    between = {"PH-AMB-05", "PH-AMB-21", "PH-AMB-22", "PH-AMB-26", "PH-MANI-19", "PH-MANI-20",
               "PH-TOOL-11", "PH-TOOL-14", "PH-AMB-06", "PH-AMB-45"}  # fmt: skip
    corpus = [(row, one, False) for row, cases in REFUSED.items() for one, _ in cases]
    corpus += [(row, one, True) for row, cases in TAKEN.items() for one in cases]
    for number, (row, changes, good) in enumerate(corpus):
        text = as_json(**changes)
        agreed = published.is_valid(json.loads(text))
        assert agreed is good or (not good and row in between), (row, changes)
        root = manifest_folder(tmp_path / str(number), text)
        if good:
            preview(daemon, root)
        else:
            refusal(daemon, root)


@whole("PH-BEY-17")
def test_the_printed_schema_is_the_shipped_file(daemon: Daemon) -> None:
    shipped = Path(__file__).parents[3] / "src/kaged/config/plugin-manifest-v1.json"
    printed = daemon.cli("schema", "plugin-manifest-v1").json
    assert printed == json.loads(shipped.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(printed)


@whole("PH-MANI-01")
def test_a_folder_without_a_manifest_is_no_plugin(daemon: Daemon, tmp_path: Path) -> None:
    root = manifest_folder(tmp_path / "none", "")
    (root / "kaged-plugin.yaml").rename(root / "kaged-plugin.yml")
    refused = refusal(daemon, root)
    assert "kaged-plugin.yaml" in refused["message"]
    below = manifest_folder(tmp_path / "outer" / "inner", as_json())
    assert "kaged-plugin.yaml" in refusal(daemon, below.parent)["message"]


@whole("PH-MANI-33", "PH-MANI-26")
def test_every_mistake_is_named_with_its_path_and_not_only_the_first(
    daemon: Daemon, tmp_path: Path
) -> None:
    faulty = as_json(
        name=None, kaged_api=None, capabilities=None, version="1.4", tools=tool(name="A")
    )
    found = {path for path, _ in problems(daemon, manifest_folder(tmp_path / "three", faulty))}
    assert found == {"name", "kaged_api", "capabilities", "version", "tools[0].name"}


@whole("PH-MANI-34")
@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch {mark}']", "!!python/name:os.system", "!x y"]
)
def test_a_tag_makes_no_object_and_runs_nothing(daemon: Daemon, tmp_path: Path, tag: str) -> None:
    mark = tmp_path / "ran"
    text = yaml.safe_dump(json.loads(as_json(author=None)))
    root = manifest_folder(tmp_path / "tagged", f"{text}author: {tag.format(mark=mark)}\n")
    assert problems(daemon, root)
    assert not mark.exists()


@whole("PH-MANI-21", "PH-CONF-08")
def test_a_field_is_committed_or_secret_and_not_both(daemon: Daemon, tmp_path: Path) -> None:
    shared = as_json(
        config_schema={**OBJECT, "properties": {"token": {}, "a": {}}},
        system_config_schema={**OBJECT, "properties": {"b": {}, "token": {}}},
    )
    refused = refusal(daemon, manifest_folder(tmp_path / "both", shared))
    (one,) = refused["data"]["problems"]
    assert one["code"] == "schemas_overlap"
    assert "token" in one["message"]


@whole("PH-MANI-06")
@pytest.mark.parametrize("block", [">\n  Keeps\n  notes.\n", "|\n  Keeps notes.\n\n"])
def test_line_ends_that_a_block_leaves_are_no_part_of_a_description(
    daemon: Daemon, tmp_path: Path, block: str
) -> None:
    text = yaml.safe_dump(json.loads(as_json(description=None)))
    root = manifest_folder(tmp_path / "block", f"{text}description: {block}")
    shown = preview(daemon, root)
    assert shown["description"] == "Keeps notes."
    assert "  description: Keeps notes." in shown["lines"]


@whole("PH-AMB-02")
def test_no_network_has_two_spellings_and_one_meaning(daemon: Daemon, tmp_path: Path) -> None:
    for number, spelling in enumerate(("net:[]", {"net": []}, "net: []")):
        root = manifest_folder(tmp_path / str(number), as_json(capabilities=[spelling]))
        (shown,) = preview(daemon, root)["capabilities"]
        assert (shown["text"], shown["words"]) == ("net:[]", "use no network")


@whole("PH-AMB-45")
def test_who_names_no_network_has_none(plugin: Callable[..., PluginFolder]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        for capabilities in ([], ["net:[]"]):
            one = plugin(
                {"on": {"a.b": [{"connect": ["127.0.0.1", port]}]}}, capabilities=capabilities
            )
            one.run()
            assert "failed" in one.call()
        with pytest.raises(BlockingIOError):
            server.accept()


@whole("PH-AMB-55")
def test_unknown_keys_are_warnings_at_the_top_and_errors_inside(
    daemon: Daemon, tmp_path: Path
) -> None:
    shown = preview(daemon, manifest_folder(tmp_path / "newer", as_json(colour="red")))
    assert any("colour" in one for one in shown["warnings"])
    knob = {"type": "boolean", "label": "On", "default": True, "binds_to": "config.on"}
    fields = {**OBJECT, "properties": {"on": {"type": "boolean"}}}
    for number, (changes, path) in enumerate(
        (
            ({"tools": tool(colour="red")}, "tools[0].colour"),
            (
                {"knobs": {"on": {**knob, "colour": "red"}}, "config_schema": fields},
                "knobs.on.colour",
            ),
        )
    ):
        root = manifest_folder(tmp_path / str(number), as_json(**changes))
        assert problems(daemon, root) == [(path, "unknown_key")]


@whole("PH-AMB-04", "PH-TOOL-07")
@pytest.mark.parametrize(
    "name",
    ["file", "edit", "search", "code", "debug", "shell", "compute", "project", "kaged", "web",
     "discover", "media", "job", "system"],
)  # fmt: skip
def test_a_built_in_namespace_is_refused_as_a_name_with_a_warning(
    daemon: Daemon, tmp_path: Path, name: str
) -> None:
    root = manifest_folder(tmp_path / name, as_json(name=name))
    refused = refusal(daemon, root)
    assert refused["code"] == "reserved_plugin_name"
    said = [line for line in daemon.log().splitlines() if str(root) in line or f"={name}" in line]
    assert any("warning" in line for line in said), said


@whole("PH-MANI-11", "PH-MANI-12", "PH-AMB-39", "PH-AMB-04")
def test_a_relative_command_is_the_plugins_own_and_its_environment_wins_but_for_three(
    daemon: Daemon, plugin: Callable[..., PluginFolder]
) -> None:
    mine = {
        "LOG_LEVEL": "debug",
        "LANG": "de_DE.UTF-8",
        "PATH": "/usr/bin:/bin",
        "KAGED_API_VERSION": "7",
        "KAGED_PLUGIN_NAME": "someone-else",
        "KAGED_PLUGIN_DIR": "/",
    }
    one = plugin({"on": {"search.run": [{"env": True}]}}, env=mine, methods=["search.run"])
    warned = preview(daemon, one.root)["warnings"]
    assert all(any(name in text for text in warned) for name in mine if name.startswith("KAGED"))
    assert len(warned) == 3
    assert one.run()["state"] == "running"
    env = one.call("search.run")["env"]
    for name in ("LOG_LEVEL", "LANG", "PATH"):
        assert env[name] == mine[name]
    assert (env["KAGED_API_VERSION"], env["KAGED_PLUGIN_NAME"]) == ("1", one.name)
    assert env["KAGED_PLUGIN_DIR"].endswith(f"/{one.name}")


@whole("PH-MANI-11")
@pytest.mark.parametrize("there", ["other", "same beginning"])
def test_a_relative_command_never_leads_into_another_plugins_folder(
    daemon: Daemon, plugin: Callable[..., PluginFolder], there: str
) -> None:
    """The other plugin is installed beside it and runs; its program is not for its neighbor."""
    name = "leaver" if there == "other" else "starter"
    other = plugin(None, name="bystander" if there == "other" else f"{name}-more")
    assert other.run()["state"] == "running"
    one = plugin(None, name=name, command=[f"../{other.name}/main.py"])
    state = one.run()
    assert (state["state"], state["pid"]) == ("failed", None)
    rows = [row for row in daemon.audit("plugin.*") if row["data"].get("name") == name]
    assert "plugin.spawned" not in [row["event"] for row in rows]
    [failed] = [row["data"] for row in rows if row["event"] == "plugin.failed"]
    assert failed["step"] == "command"
    assert "leaves the plugin's directory" in failed["reason"]
    assert other.state()["state"] == "running"


@whole("PH-MANI-14", "PH-AMB-06", "PH-ROLE-04")
def test_who_has_hooks_and_names_no_role_observes(
    daemon: Daemon, plugin: Callable[..., PluginFolder], project: Project
) -> None:
    hooks = ["pre_compact", "post_compact"]
    expected = {
        plugin(None, hooks=hooks).name: ["observer"],
        plugin(None, hooks=hooks, roles=["compactor"]).name: ["compactor"],
        plugin(None, hooks=hooks, role="observer").name: ["observer"],
        plugin(None, hooks=hooks, role=["observer"]).name: ["observer"],
    }
    silent = plugin(None)
    for name in (*expected, silent.name):
        folder = silent.root.parent / name
        shown = preview(daemon, folder)
        daemon.post("/plugins", {"path": str(folder), "digest": shown["digest"]})
        daemon.post(f"/plugins/{name}/enable")
    project.describe(plugins={name: {"package": name} for name in (*expected, silent.name)})
    project.reload()
    (agent,) = project.get("")["tree"]["agents"]
    shown = {one["plugin"]: one["roles"] for one in agent["compaction"]["plugins"]}
    assert shown == expected


@whole("PH-MANI-27", "PH-TOOL-04", "PH-AUD-14")
def test_a_manifest_that_went_bad_disables_its_plugin_for_this_run_only(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    good = PluginFolder(daemon, tmp_path / "good", name="good")
    bad = PluginFolder(daemon, tmp_path / "bad", name="bad", tools=tool())
    for one in (good, bad):
        assert one.run()["state"] == "running"
    daemon.stop()
    file = daemon.home / "plugins" / "bad" / "kaged-plugin.yaml"
    right = file.read_text(encoding="utf-8")
    file.write_text(right.replace("name: retain", "name: other.tool"), encoding="utf-8")
    daemon.start()
    assert bad.state()["state"] == "disabled (invalid manifest)"
    wait_for(lambda: good.state()["state"] == "running")
    assert "disabled (invalid manifest)" in daemon.cli("plugin", "list").out
    (row,) = bad.audit("plugin.disabled")
    assert row["data"]["name"] == "bad"
    assert "manifest" in row["data"]["reason"]
    assert "bad" in kept(daemon)[2], "it stays enabled in the operator's file"
    daemon.stop()
    file.write_text(right, encoding="utf-8")
    daemon.start()
    wait_for(lambda: bad.state()["state"] == "running")
    assert len(bad.audit("plugin.disabled")) == 1
