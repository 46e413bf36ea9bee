"""Aliases: which model is behind one, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from types import MappingProxyType

import pytest

from fakes.file_clock import FileClock
from kaged.base import Ids, JsonObject, ManualClock
from kaged.config.localconfig import ModelEntry, load_local_config
from kaged.config.secret import Secret
from kaged.config.sections import Sections
from kaged.models.catalogue import ModelCatalogue
from kaged.models.errors import ModelError
from kaged.models.provided import ProviderQuestion
from kaged.models.turn import Model, ModelRequest, TurnFinished, UserMessage
from raising import raises_code


class Operator:
    """Writes local.toml and gives a catalogue over it."""

    def __init__(self, folder: Path, clock: ManualClock, ids: Ids) -> None:
        self.folder = folder
        self.entries: Sections[ModelEntry] = Sections()
        self.catalogue = ModelCatalogue(lambda: self.entries, folder=folder, clock=clock, ids=ids)

    def writes(self, text: str, **environ: str) -> None:
        path = self.folder / "local.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        self.entries = load_local_config(path, environ).value.models

    def script(self, name: str, says: str) -> None:
        text = f"turns: [{{ say: '{says}', repeat: true }}]"
        (self.folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def operator(tmp_path: Path, clock: ManualClock, ids: Ids) -> Operator:
    return Operator(tmp_path, clock, ids)


async def said_by(model: Model) -> str:
    events = [event async for event in model.stream(ModelRequest([UserMessage("hi")]))]
    assert isinstance(events[-1], TurnFinished)
    return events[-1].turn.message.text


async def test_an_alias_leads_to_the_model_that_the_operator_named(
    operator: Operator, file_clock: FileClock
) -> None:
    file_clock.settle()
    operator.script("one.yaml", "One.")
    operator.writes('[models.smart-fast]\nmodel = "scripted:one.yaml"\ncontext_window = 5000\n')
    model = operator.catalogue.get("smart-fast")
    assert (model.alias, model.context_tokens) == ("smart-fast", 5000)
    assert await said_by(model) == "One."
    assert operator.catalogue.get("smart-fast") is model


async def test_each_project_sees_the_window_that_its_own_script_states(
    operator: Operator,
) -> None:
    async def ask(_question: ProviderQuestion) -> AsyncGenerator[JsonObject]:
        yield {"type": "message_end"}

    stated = {("a", "p", "m"): 2000, ("b", "p", "m"): 3000}
    operator.catalogue.connect(
        ask, lambda project, provider, model: stated.get((project, provider, model))
    )
    operator.script("one.yaml", "One.")
    operator.writes(
        '[models.x]\nmodel = "lua:p/m"\n[models.fixed]\nmodel = "lua:p/m"\n'
        'context_window = 500\n[models.both]\nmodel = "lua:p/m"\nfallbacks = ["fixed"]\n'
    )
    windows = {
        (alias, project): operator.catalogue.get(alias, project).context_tokens
        for alias in ("x", "fixed", "both")
        for project in ("a", "b", "c")
    }
    assert [windows["x", one] for one in "abc"] == [2000, 3000, 128_000]
    assert {windows["fixed", one] for one in "abc"} == {500}
    assert {windows["both", one] for one in "abc"} == {500}
    model = operator.catalogue.get("x", "a")
    stated["a", "p", "m"] = 2500
    assert (model.alias, model.context_tokens) == ("x", 2500)


async def test_a_script_that_is_replaced_in_the_same_moment_is_the_new_one(
    operator: Operator, file_clock: FileClock
) -> None:
    operator.writes('[models.smart-fast]\nmodel = "scripted:one.yaml"\n')
    for says in ("One.", "Two."):
        operator.script("one.yaml", says)
        assert await said_by(operator.catalogue.get("smart-fast")) == says
    file_clock.settle()
    assert await said_by(operator.catalogue.get("smart-fast")) == "Two."
    # From now on it is not read again: no text of this length has that time any more.
    operator.script("one.yaml", "Six.")
    assert await said_by(operator.catalogue.get("smart-fast")) == "Two."


async def test_a_changed_file_or_script_makes_a_new_model(operator: Operator) -> None:
    operator.script("one.yaml", "One.")
    operator.script("two.yaml", "Two, which is longer.")
    operator.writes('[models.m]\nmodel = "scripted:one.yaml"\n')
    assert await said_by(operator.catalogue.get("m")) == "One."
    operator.writes('[models.m]\nmodel = "scripted:two.yaml"\n')
    assert await said_by(operator.catalogue.get("m")) == "Two, which is longer."
    operator.script("two.yaml", "Changed.")
    assert await said_by(operator.catalogue.get("m")) == "Changed."


def test_an_unknown_alias_says_what_to_write(operator: Operator) -> None:
    with raises_code("model_unknown", ModelError) as caught:
        operator.catalogue.get("smart")
    assert caught.value.code == "model_unknown"
    assert "[models.smart]" in (caught.value.fix or "")


def test_a_section_that_cannot_be_used_says_why(operator: Operator) -> None:
    operator.writes('[models.m]\nmodel = "acme:x"\napi_key = "${NOT_SET}"\n')
    with raises_code("model_unknown", ModelError, match="NOT_SET"):
        operator.catalogue.get("m")
    rows = {row["alias"]: row["usable"] for row in operator.catalogue.rows()}
    assert rows == {"m": False, "scripted": True}


def test_a_broken_script_is_reported_when_the_model_is_asked_for(operator: Operator) -> None:
    operator.writes('[models.m]\nmodel = "scripted:nowhere.yaml"\n')
    with raises_code("model_script_invalid", ModelError):
        operator.catalogue.get("m")


async def test_scripted_is_always_there(
    operator: Operator, tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    assert operator.catalogue.aliases == ("scripted",)
    assert "scripted model" in await said_by(operator.catalogue.get("scripted"))
    operator.script("given.yaml", "Given.")
    given = ModelCatalogue(
        lambda: operator.entries,
        folder=tmp_path,
        clock=clock,
        ids=ids,
        script=tmp_path / "given.yaml",
    )
    assert await said_by(given.get("scripted")) == "Given."


async def test_fallbacks_stand_in(operator: Operator) -> None:
    (operator.folder / "down.yaml").write_text("turns: [{ error: unavailable }]", encoding="utf-8")
    operator.script("up.yaml", "Up.")
    operator.writes(
        '[models.m]\nmodel = "scripted:down.yaml"\nretries = 0\nfallbacks = ["m", "other"]\n'
        '[models.other]\nmodel = "scripted:up.yaml"\nfallbacks = ["m"]\n'
    )
    assert await said_by(operator.catalogue.get("m")) == "Up."


async def test_check_reports_instead_of_raising(operator: Operator) -> None:
    row = await operator.catalogue.check("nobody")
    assert row["ok"] is False
    assert isinstance(row["error"], dict)
    assert row["error"]["code"] == "model_unknown"
    good = await operator.catalogue.check("scripted")
    assert good["ok"] is True


def test_rows_hold_no_keys(operator: Operator) -> None:
    entry = ModelEntry(model="acme:x", api_key=Secret("sk-hidden"))
    operator.entries = Sections(MappingProxyType({"m": entry}))
    assert "sk-hidden" not in repr(operator.catalogue.rows())
    assert operator.catalogue.rows()[0]["has_key"] is True


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, kaged.models.catalogue; "
        "sys.exit(any(m in sys.modules for m in ('pydantic_ai', 'openai', 'genai_prices')))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
