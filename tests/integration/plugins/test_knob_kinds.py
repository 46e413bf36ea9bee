"""Each kind of knob: what its declaration needs and which values it takes."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.plugin_lab import manifest
from fakes.project_stage import ProjectStage
from kaged.config.localconfig import ModelTrait
from kaged.config.problems import ConfigFileInvalid
from kaged.plugins.knob_write import KnobService
from raising import raises_code
from requirements import requirement

DECLARED = {"plugins": {"stub": {"package": "stub"}}}
FIELDS = {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}


def knob(kind: str, **more: Any) -> dict[str, Any]:
    return {"x": {"type": kind, "label": "X", "binds_to": "config.x", **more}}


async def turn(stage: ProjectStage, knobs: dict[str, Any], value: Any) -> None:
    """Write a knob of a freshly declared plugin."""
    service = KnobService(
        stage.supervisor,
        stage.lab.parts.audit,
        models=lambda: {"quick": frozenset({ModelTrait.FAST}), "deep": frozenset()},
    )
    if "stub" not in stage.supervisor.plugins:
        stage.supervisor.register(stage.lab.install(knobs=knobs, config_schema=FIELDS))
    await stage.load(DECLARED)

    async def reload(project: str) -> None:
        await stage.supervisor.load_project(project, stage.tree(DECLARED))

    await service.write("p", "primary", "stub", "x", value, request_id="r", reload=reload)


async def judge(
    stage: ProjectStage, knobs: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        await turn(stage, knobs, value)
    for value in bad:
        with raises_code("knob_value_refused"):
            await turn(stage, knobs, value)


def refused(*knobs: dict[str, Any]) -> None:
    for one in knobs:
        with pytest.raises(ConfigFileInvalid):
            manifest(knobs=one, config_schema=FIELDS)


@requirement("PH-KNOB-08")
async def test_a_text_knob_is_one_line_with_bounds(stage: ProjectStage) -> None:
    refused(
        knob("text"),
        knob("text", default=1),
        knob("text", default="", pattern="("),
        knob("text", default="", max_length="x"),
    )
    knobs = knob("text", default="ab", max_length=5, pattern="^[a-z]*$")
    await judge(stage, knobs, ["abcde", ""], ["abcdef", "ABC", "a\nb", 5, None])


@requirement("PH-KNOB-09")
async def test_a_multiline_knob_takes_line_breaks(stage: ProjectStage) -> None:
    refused(knob("multiline"), knob("multiline", default="", max_length="x"))
    knobs = knob("multiline", default="", max_length=5)
    await judge(stage, knobs, ["a\nb\nc", ""], ["abcdef", 5])


@requirement("PH-KNOB-10")
async def test_a_model_knob_takes_known_aliases(stage: ProjectStage) -> None:
    refused(knob("model_alias", default=None, filter="slow"), knob("model_alias", default=5))
    assert manifest(knobs=knob("model_alias", default=None), config_schema=FIELDS)
    for kind in ("any", "reasoning", "fast"):
        assert manifest(knobs=knob("model_alias", default="m", filter=kind), config_schema=FIELDS)
    knobs = knob("model_alias", default=None, filter="fast")
    await judge(stage, knobs, ["quick", None], ["deep", "unknown", 5])


@requirement("PH-KNOB-11")
async def test_a_path_knob_keeps_to_its_prefixes(stage: ProjectStage) -> None:
    refused(
        knob("path", default="config:/x"),
        knob("path", default="config:/x", prefixes=["home:"]),
        knob("path", default="config:/x", prefixes=["config:"], must_exist="maybe"),
    )
    knobs = knob("path", default="config:/x", prefixes=["config:"])
    bad = ["project:/x", "/etc/passwd", "x", "config:/../x", "config:x", 5]
    await judge(stage, knobs, ["config:/x", "config:/not/there"], bad)


@requirement("PH-KNOB-11")
async def test_a_path_knob_can_ask_for_what_exists(stage: ProjectStage) -> None:
    knobs = knob("path", default="config:/here", prefixes=["config:"], must_exist=True)
    (stage.lab.root / "data" / "stub" / "here").mkdir(parents=True)
    await judge(stage, knobs, ["config:/here"], ["config:/there"])
