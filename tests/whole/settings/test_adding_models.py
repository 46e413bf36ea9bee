"""`kaged model add` and its neighbors: from a key to a model that answers."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say
from whole.harness.project import Project
from whole.harness.screen import ENTER, Screen
from whole.harness.talk import fresh

KEY = "sk-typed-by-nobody-1234567890"
COMMENTED = '# My models.\n[models.mine]\nmodel = "scripted" # played\n\n[plugins.other]\nx = 1\n'


@pytest.fixture
def served(own: Callable[..., Daemon]) -> Daemon:
    """Return a daemon of the test's own whose local.toml has no model that answers."""
    daemon = own(local=COMMENTED)
    daemon.start()
    return daemon


def file_of(daemon: Daemon) -> str:
    """Return local.toml as it is."""
    path = daemon.home / "local.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text(encoding="utf-8")


def test_a_script_adds_a_model_with_a_key_from_a_pipe_and_a_run_uses_it(
    served: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    url = f"{model.url}/v1"
    model.always("gpt-added", say("ready"))
    words = ("model", "add", "quick", "--model", "openai:gpt-added", "--base-url", url)
    done = served.cli(*words, "--key-stdin", stdin=f"{KEY}\n")
    assert "quick answers: ready" in done.out
    assert KEY not in done.out + done.err
    text = file_of(served)
    assert text.startswith('# My models.\n[models.mine]\nmodel = "scripted" # played\n')
    assert "[plugins.other]\nx = 1\n" in text
    assert f'api_key = "{KEY}"' in text
    project = served.load(Project(tmp_path / "p"))
    ran = served.cli("run", "hello", "--model", "quick", cwd=project.root)
    assert ran.out == "ready\n"
    assert KEY not in served.log()
    # A second one beside it, with the key in a variable; and the same one anew with another model.
    served.cli("model", "add", "other", "--model", "openai:x", "--base-url", url,
               "--key-from-env", "HOME", "--no-test")  # fmt: skip
    assert 'api_key = "${HOME}"' in file_of(served)
    served.cli("model", "add", "quick", "--model", "scripted:none", "--no-test")
    assert KEY not in file_of(served)
    assert "[models.other]" in file_of(served)


def test_a_model_that_does_not_answer_is_not_kept_unless_that_is_wanted(
    served: Daemon, model: ModelServer
) -> None:
    before = file_of(served)
    model.always("gpt-refuses", {"error": {"message": "no such plan"}, "status": 401})
    url = f"{model.url}/v1"
    where = ("--model", "openai:gpt-refuses", "--base-url", url)
    words = ("model", "add", "bad", *where, "--key-stdin")
    done = served.cli(*words, code=8, stdin=f"{KEY}\n")
    assert "no such plan" in done.err
    assert "as it was before" in done.err
    assert file_of(served) == before
    served.cli(*words, "--keep", stdin=f"{KEY}\n")
    assert "[models.bad]" in file_of(served)
    tested = served.cli("model", "test", "bad", code=8)
    assert "no such plan" in tested.err
    # One that is there already comes back as it was.
    kept = file_of(served)
    served.cli("model", "add", "mine", "--model", "openai:gpt-refuses", "--base-url", url,
               "--key-stdin", code=8, stdin=f"{KEY}\n")  # fmt: skip
    assert file_of(served) == kept


def test_default_and_remove_change_which_model_projects_get(
    served: Daemon, model: ModelServer, tmp_path: Path
) -> None:
    url = f"{model.url}/v1"
    for name in ("one", "two"):
        model.always(f"gpt-{name}", say(f"I am {name}."))
        served.cli("model", "add", name, "--model", f"openai:gpt-{name}", "--base-url", url)
    project = served.load(Project(tmp_path / "p"))
    served.cli("model", "default", "one")
    assert served.cli("run", "who", cwd=project.root).out == "I am one.\n"
    served.cli("model", "default", "two")
    assert served.cli("run", "who", cwd=project.root).out == "I am two.\n"
    served.cli("model", "remove", "two")
    listed = served.cli("model", "list").out
    assert [line.split("\t")[0] for line in listed.splitlines()] == [
        "mine", "one", "default", "scripted",
    ]  # fmt: skip
    refused = served.cli("model", "remove", "two", code=1)
    assert "model_unknown" in refused.err


def test_without_a_person_and_without_a_model_it_says_what_to_say(served: Daemon) -> None:
    refused = served.cli("model", "add", code=6)
    assert "kaged model add ALIAS --model vendor:name" in refused.err
    for wrong in ("gpt", "OpenAI:gpt", "openai:"):
        assert "vendor:name" in served.cli("model", "add", "--model", wrong, code=6).err


def test_a_first_run_without_a_model_leads_there_and_goes_on(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own(local="# nothing yet\n")
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    plain = daemon.cli("run", "hello", cwd=project.root, code=1)
    assert "Run `kaged model add default`" in plain.err
    word = fresh()
    model.always("gpt-first", say("I am here."))
    with Screen(daemon, "run", f"{word} hello", cwd=project.root, lines=60) as screen:
        screen.until("No model has the alias default yet.", "Add one now?")
        screen.type("y", ENTER)
        screen.until("Another server with an OpenAI-compatible API", "Vendor [1]:")
        screen.type("10", ENTER)
        screen.until("URL of the server:")
        screen.type(f"{model.url}/v1", ENTER)
        screen.until("Key of Another server")
        screen.type(KEY, ENTER)
        screen.until("Model:")
        screen.type("gpt-first", ENTER)
        seen = screen.until("default answers: I am here.", "completed in 1 step")
        assert KEY not in seen
        assert screen.wait() == 0
    assert f'api_key = "{KEY}"' in file_of(daemon)
    assert file_of(daemon).startswith("# nothing yet\n")
