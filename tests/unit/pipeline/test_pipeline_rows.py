"""What doctor and status say about the pipeline, in each of its states."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaged.base.checks import CheckStatus
from kaged.config import Locations
from kaged.config.problems import Problem
from kaged.config.settings import Settings, read_settings
from kaged.pipeline.pipeline import PipelineStatus
from kaged.pipeline.policy_pipeline import file_row, status_row

BAD = Problem("f", 3, 1, "plugins[0].mode", "is no mode")


def state(
    *problems: Problem,
    file: str | None = "f",
    refused: tuple[str, ...] = (),
    refuses_all: bool = False,
    in_force: bool = True,
    off: tuple[str, ...] = (),
) -> PipelineStatus:
    return PipelineStatus(file, problems, ("p",), off, refused, refuses_all, in_force)


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (state(), CheckStatus.OK, "f: 1 plugins"),
        (state(file=None, refuses_all=True), CheckStatus.WARN, "are starting"),
        (state(BAD, refused=("h",), in_force=False), CheckStatus.FAIL, "calls on h are refused"),
        (state(BAD, refuses_all=True, in_force=False), CheckStatus.FAIL, "every hook"),
        (state(BAD, in_force=False), CheckStatus.WARN, "the old file is in force"),
        (state(BAD), CheckStatus.WARN, "faulty plugins are left out"),
        (state(off=("p",)), CheckStatus.WARN, "switched off after errors: p"),
        (state(*[BAD] * 9, refuses_all=True), CheckStatus.FAIL, "and 4 more"),
    ],
)
def test_every_state_has_its_words(status: PipelineStatus, level: CheckStatus, words: str) -> None:
    row = status_row(status, "f")
    assert (row.id, row.status) == ("pipeline", level)
    assert words in row.cause
    assert bool(row.fix) or level is CheckStatus.OK


def settings(home: Path, pipeline: str) -> Settings:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(pipeline, encoding="utf-8")
    (home / "config.toml").chmod(0o600)
    return read_settings(Locations.from_env({"KAGED_HOME": str(home)}), {})


def test_without_a_daemon_the_file_is_read_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    chosen = settings(tmp_path / "h", f'[pipeline]\nfile = "{file}"\n')
    assert "cannot be read" in file_row(chosen).cause
    file.write_text("plugins:\n  - {name: p, kind: no.such.Class, hooks: [h]}\n", encoding="utf-8")
    assert file_row(chosen).status is CheckStatus.OK
    file.write_text("plugins:\n  - {name: p, kind: a.B, mode: odd}\n", encoding="utf-8")
    row = file_row(chosen)
    assert row.status is CheckStatus.FAIL
    assert f"{file}:2:" in row.cause
    file.write_text("plugins:\n  - {name: p, kind: a.B, hook: [h]}\n", encoding="utf-8")
    assert file_row(chosen).status is CheckStatus.WARN
    assert file_row(settings(tmp_path / "n", "")).status is CheckStatus.OK
