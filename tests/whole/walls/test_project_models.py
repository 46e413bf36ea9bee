"""The choice of a model is asked for: widening restricts the project, narrowing does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer, say


def test_a_project_s_other_models_are_asked_for_and_the_default_is_not(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    local = "".join(
        model.local_toml(alias, name=f"{alias}-name") for alias in ("default", "big", "huge")
    )
    daemon = own(local=local)
    daemon.start()
    root = tmp_path / "p"
    daemon.cli("project", "init", cwd=_made(root))
    file = root / ".kaged/project.yaml"
    text = file.read_text(encoding="utf-8")
    words = iter(f"pelican-{number}" for number in range(20))

    def with_model(alias: str) -> dict[str, Any]:
        file.write_text(text.replace("model: default", f"model: {alias}", 1), encoding="utf-8")
        return daemon.post("/projects", {"root": str(root)})

    def asked() -> str:
        word = next(words)
        model.play(word, say("done"))
        daemon.cli("run", word, cwd=root)
        (body,) = model.asked(word)
        return body["model"]

    found = with_model("default")
    assert found["trusted"] is True
    assert asked() == "default-name"
    # Wider: what it asks for is said, and nothing of it is in force.
    found = with_model("big")
    assert found["trusted"] is False
    assert [one["words"] for one in found["ask"]["things"] if "model" in one["key"]] == [
        "primary sends what it reads to the model big of your local.toml, at its price"
    ]
    assert asked() == "default-name"
    daemon.cli("project", "trust", str(root), "--yes")
    assert asked() == "big-name"
    # Another one is asked for again, and marked; after a restart, too.
    found = with_model("huge")
    assert found["trusted"] is False
    assert [one["key"] for one in found["ask"]["things"] if one["new"]] == ["primary: model"]
    daemon.restart()
    assert daemon.get(f"/projects/{found['id']}")["trusted"] is False
    assert asked() == "default-name"
    # Narrower, and back to what was agreed to: nobody is asked.
    for alias in ("default", "big"):
        assert with_model(alias)["trusted"] is True
        assert asked() == f"{alias}-name"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
