"""Models that do not answer as they should: a code each, and what the operator set about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import PROTOCOLS, ModelServer, cut_off, refuse, say
from whole.harness.project import Project
from whole.harness.talk import Talk

FAILURES: dict[str, dict[str, Any]] = {
    "limited": refuse(429, "slow down", type="rate_limit_error"),
    "keyless": refuse(401, "no such key", type="authentication_error"),
    "broken": refuse(503, "down", type="api_error"),
    "full": refuse(
        400,
        "prompt is too long: 9 tokens > 8 maximum",
        type="invalid_request_error",
        code="context_length_exceeded",
    ),
    "strange": {**say("this is no answer"), "chaos": {"malformedRate": 1}},
    "silent": {**say("late"), "chaos": {"latencyMs": 30_000}},
    "stopped": cut_off(say("This is the beginning of a long answer.")),
}
CODES = {
    "limited": "model_rate_limited",
    "keyless": "model_refused",
    "broken": "model_unavailable",
    "full": "model_context_exceeded",
    "strange": "model_bad_answer",
    "silent": "model_unavailable",
    "stopped": "model_unavailable",
}
SCRIPT = "turns:\n  - say: Yes.\n"


@pytest.fixture(scope="module")
def served(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with a model for each way to fail, in each protocol."""
    sections = [model.local_toml(), model.local_toml("small", context_window=300)]
    for kind, turn in FAILURES.items():
        model.always(f"fails-{kind}", turn)
    sections += [
        model.local_toml(
            f"{kind}-{protocol}",
            protocol,
            name=f"fails-{kind}",
            retries=0,
            # Short for this one only: else load alone would fail the others.
            **({"idle_timeout_s": 0.5} if kind == "silent" else {}),
        )
        for kind in FAILURES
        for protocol in PROTOCOLS
    ]
    sections += [
        '[models.gone]\nmodel = "openai:gpt-4o"\nbase_url = "http://127.0.0.1:9/v1"\nretries = 0\n',
        '[models.ended]\nmodel = "scripted:good.yaml"\n',
        '[models.wrong]\nmodel = "scripted:absent.yaml"\n',
        model.local_toml("backed", name="fails-broken", retries=0, fallbacks=["default"]),
    ]
    daemon = Daemon(module_path / "m", local="".join(sections))
    daemon.write("good.yaml", SCRIPT)
    daemon.start()
    yield daemon
    daemon.close()


@pytest.fixture
def project(served: Daemon, tmp_path: Path) -> Project:
    """Return a project of the test's own on that daemon."""
    return served.load(Project(tmp_path / "p", cage="disabled"))


@pytest.mark.parametrize(
    ("alias", "code"),
    [
        ("gone", "model_unavailable"),
        *((f"{kind}-{one}", code) for kind, code in CODES.items() for one in PROTOCOLS),
    ],
)
def test_a_model_that_fails_gives_the_run_a_code(
    served: Daemon, project: Project, model: ModelServer, alias: str, code: str
) -> None:
    talk = Talk(project, model)
    run = talk.end(talk.tell("please", model=alias))
    assert (run["status"], run["error"]["code"]) == ("failed", code), run
    checked = served.post("/models/check", {"alias": alias})
    assert (checked["ok"], checked["error"]["code"]) == (False, code)
    assert "sk-test" not in str(checked)


def test_a_fallback_answers_for_a_model_that_is_out_of_order(
    project: Project, model: ModelServer
) -> None:
    run = Talk(project, model).hear(say("I am the other one."), model="backed")
    assert run["status"] == "completed", run


def test_a_script_that_is_over_and_one_that_is_not_there_have_codes(
    served: Daemon, project: Project, model: ModelServer
) -> None:
    talk = Talk(project, model)
    assert talk.end(talk.tell("first", model="ended"))["status"] == "completed"
    run = talk.end(talk.tell("second", model="ended"))
    assert (run["status"], run["error"]["code"]) == ("failed", "model_script_ended"), run
    path = f"/projects/{project.id}/sessions/{talk.id}/message"
    refused = served.error("POST", path, {"text": "third", "model": "wrong"})
    assert (refused["status"], refused["code"]) == (422, "model_script_invalid")


def test_a_session_is_compacted_for_the_window_that_the_operator_set(
    served: Daemon, project: Project, model: ModelServer
) -> None:
    talk = Talk(project, model)
    for _ in range(4):
        talk.hear(say("word " * 100), model="default")
    assert served.audit("compaction.triggered", project_id=project.id) == []
    talk.hear(say("word " * 100), model="small")
    assert served.audit("compaction.triggered", project_id=project.id)
