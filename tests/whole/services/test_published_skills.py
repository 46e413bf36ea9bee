"""Skills in the shapes of published folders load as they are; malformed ones say line and reason.

Nothing here is copied: the folders are written in the shapes that public repositories use, with
the front matter of other hosts, bundled scripts and references.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from whole.harness.conversation import begin, say_to
from whole.harness.daemon import wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.services import CAGE, SHELL, Desk, Person, somebody

COUNT = "#!/usr/bin/env python3\nimport sys\nprint(len(sys.argv[1]), 'characters')\n"
PUBLISHED: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    # A license in words, scripts and references beside it.
    "paper-forms": (
        (
            "---\nname: paper-forms\n"
            'description: "Fill in forms; use it when somebody mentions a form, or a .form file."\n'
            "license: Proprietary. LICENSE.txt has complete terms\n---\n\n"
            "# Forms\n\nSee REFERENCE.md.\n"
        ),
        {
            "REFERENCE.md": "# Reference\n",
            "LICENSE.txt": "All rights.\n",
            "scripts/count.py": COUNT,
        },
        {"license": "Proprietary. LICENSE.txt has complete terms"},
    ),
    # A folded description after other keys, and tools of another host.
    "build-step": (
        (
            "---\nname: build-step\nallowed-tools: Read, Grep, Glob, Bash(git:*)\ndescription: >\n"
            "  Run it after a plan exists.\n  One step at a time.\nmodel: small\n---\nBuild.\n"
        ),
        {"references/steps/one.md": "One.\n"},
        {"allowed-tools": "Read, Grep, Glob, Bash(git:*)", "model": "small"},
    ),
    # A colon that is no YAML, as many write it.
    "when-lost": (
        (
            "---\nname: when-lost\ndescription: Use when: nothing helps, or somebody asks: why?\n"
            "---\nAsk.\n"
        ),
        {},
        {},
    ),
    # Maps and lists of other hosts; `capabilities` below `metadata` are not ours.
    "status-board": (
        (
            "---\nname: status-board\ndescription: 'Report \"status\".'\nversion: 1.2.0\n"
            "argument-hint: <what>\ncontext:\n  window: inherit\n  intent: {mode: none}\n"
            "hooks: []\nuser-invocable: false\nmetadata:\n  capabilities: [status]\n"
            "  tags: [a, b]\n  author: somebody\n---\n\nReport.\n"
        ),
        {"assets/board.svg": "<svg/>\n"},
        {
            "version": "1.2.0",
            "argument-hint": "<what>",
            "context": {"window": "inherit", "intent": {"mode": "none"}},
            "hooks": [],
            "user-invocable": False,
            "metadata": {"capabilities": ["status"], "tags": ["a", "b"], "author": "somebody"},
        },
    ),
    # A title for a name, a comment, and a file as another system begins it and ends its lines.
    "title-case": (
        (
            "\ufeff---\r\nname: Title Case Skill\r\n"
            "description: Names itself otherwise. # or not\r\n"
            "dependencies: python>=3.8, pandas>=1.5.0\r\n---\r\n\r\n"
            "# Title\r\n\r\n---\r\nA line.\r\n"
        ),
        {},
        {"dependencies": "python>=3.8, pandas>=1.5.0"},
    ),
    # What many write and YAML does not know: two lists in a line, a sign of its own; halves of
    # characters as JSON escapes them; a list of another host's capabilities; a key as variable.
    "other-hosts": (
        (
            "---\nname: other-hosts\ndescription: Made for others.\nargument-hint: [day] [who]\n"
            "owner: @somebody\ncapabilities: [{id: search, description: Look.}, code-generation]\n"
            'metadata: {"other": {"emoji": "\\ud83d\\udcb0", "primaryEnv": "OTHER_KEY"}}\n'
            "env: [OTHER_API_KEY]\n---\n\nDo as others.\n"
        ),
        {"scripts/show.py": "import os\nprint('OTHER_API_KEY' in os.environ)\n"},
        {
            "argument-hint": "[day] [who]",
            "owner": "@somebody",
            "capabilities": [{"id": "search", "description": "Look."}, "code-generation"],
            "metadata": {"other": {"emoji": "\U0001f4b0", "primaryEnv": "OTHER_KEY"}},
            "env": ["OTHER_API_KEY"],
        },
    ),
}
SAID = {
    "paper-forms": "Fill in forms; use it when somebody mentions a form, or a .form file.",
    "build-step": "Run it after a plan exists. One step at a time.",
    "when-lost": "Use when: nothing helps, or somebody asks: why?",
    "status-board": 'Report "status".',
    "title-case": "Names itself otherwise.",
    "other-hosts": "Made for others.",
}
MALFORMED = {
    "no-front": ("# Only words\n", 1, "front matter"),
    "no-end": ("---\nname: no-end\ndescription: It goes on.\n", 1, "no end"),
    "no-words": ("---\nname: no-words\n---\nDo it.\n", None, "description"),
    "twice": ("---\nname: twice\ndescription: A.\ndescription: B.\n---\n", 4, "description"),
    "half-ours": ("---\ndescription: A.\ncapabilities: [gog.email, email]\n---\n", 3, "email"),
    "open-list": ("---\nname: open-list\ndescription: A.\ntools: [a, b\n---\n", 4, ""),
}


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk]) -> Desk:
    made = desks()
    made.project.describe(cage=CAGE, tools={**SHELL, "skill.*": {"enabled": True}})
    for name, (text, files, _) in PUBLISHED.items():
        for path, content in {"SKILL.md": text, **files}.items():
            made.project.write(f".claude/skills/{name}/{path}", content)
    for name, (text, _, _) in MALFORMED.items():
        made.project.write(f".claude/skills/{name}/SKILL.md", text)
    made.open()
    for name in PUBLISHED:
        wait_for(lambda name=name: name in _waiting(made), f"{name} asks")
        request = _waiting(made)[name]
        answer = {"digest": request["digest"], "answer": {"choice": "yes"}}
        made.daemon.post(f"/inbox/{request['id']}/answer", answer)
    return made


def _waiting(desk: Desk) -> dict[str, dict[str, Any]]:
    rows = desk.daemon.get("/inbox?kind=skill_consent&state=pending")["items"]
    return {one["title"].split()[3]: one for one in rows}


def use(desk: Desk, person: Person, tool: str, **params: Any) -> Any:
    body = {"agent": "primary", "tool": tool, "params": params}
    path = f"/api/v1/projects/{desk.project.id}/tools/call"
    answer = desk.front_end.post(path, json=body, headers=person.headers)
    return answer.json()["result"] if answer.is_success else answer.json()["error"]


def test_the_model_is_shown_names_and_descriptions_and_loads_one(
    desk: Desk, model: ModelServer
) -> None:
    model.play("count-the-form", call("skill.load", name="paper-forms"), say("Loaded."))
    run = say_to(desk.project, begin(desk.project), "count-the-form")
    assert run["status"] == "completed", run
    asked = model.asked("count-the-form")
    prompt = asked[0]["messages"][0]
    for name, said in SAID.items():
        assert json.dumps(f"- {name}: {said}")[1:-1] in json.dumps(prompt), name
    assert not [name for name in MALFORMED if f"- {name}:" in json.dumps(prompt)]
    # The instructions come when they are asked for, and not before.
    assert "See REFERENCE.md." not in json.dumps(asked[0]["messages"])
    assert "See REFERENCE.md." in json.dumps(asked[-1]["messages"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_skill_is_loaded_on_demand_with_its_files(desk: Desk, name: str) -> None:
    text, files, kept = PUBLISHED[name]
    ann = somebody()
    got = use(desk, ann, "skill.load", name=name)
    assert got["instructions"].split() == text.split("---", 2)[2].split()
    assert {one["path"] for one in got["files"]} == set(files)
    for path, content in files.items():
        assert use(desk, ann, "skill.load", name=name, file=path)["content"] == content
    # What other hosts read is kept, and nothing here.
    words = ("skill", "show", name, "-p", desk.project.id, "--json")
    shown = desk.daemon.cli(*words).json
    front = shown["front_matter"]
    assert {key: front[key] for key in kept} == dict(kept)
    assert shown["description"] == SAID[name]
    assert shown["state"] == "ready"


def test_a_bundled_script_runs_in_the_cage(desk: Desk) -> None:
    script = {"name": "paper-forms", "script": "scripts/count.py", "args": ["four"]}
    done = use(desk, somebody(), "skill.run", **script)
    assert (done["exit_code"], done["stdout"]) == (0, "4 characters\n"), done


def test_what_a_skill_wants_that_kaged_does_not_give_is_told_and_not_given(desk: Desk) -> None:
    [found] = [one for one in desk.project.get("/skills")["skills"] if one["name"] == "other-hosts"]
    told = {(one["line"], one["message"].split()[0]) for one in found["problems"]}
    assert told == {(4, "a"), (6, "capabilities"), (8, "env")}
    assert found["capabilities"] == []
    done = use(desk, somebody(), "skill.run", name="other-hosts", script="scripts/show.py")
    assert (done["exit_code"], done["stdout"]) == (0, "False\n"), done


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_skill_is_refused_with_line_and_reason(desk: Desk, name: str) -> None:
    _, line, reason = MALFORMED[name]
    [found] = [one for one in desk.project.get("/skills")["skills"] if one["name"] == name]
    assert found["state"] == "refused"
    problem = found["problems"][0]
    assert problem["line"] == line, problem
    assert reason in problem["message"], problem
    assert use(desk, somebody(), "skill.load", name=name)["code"] == "skill_not_found"
    folder = desk.project.root / ".claude/skills" / name
    bad = desk.daemon.cli("skill", "check", str(folder), code=6)
    assert "SKILL.md" in bad.out
