"""Skills that run: shown to the model, loaded, and their scripts with what they declared only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.daemon import wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.services import (
    SHELL,
    Bridge,
    Desk,
    Person,
    capability,
    operation,
    read_token,
    somebody,
)

FOLDER = {
    "type": "object",
    "required": ["folder", "limit"],
    "properties": {"folder": {"type": "string"}, "limit": {"type": "integer", "minimum": 3}},
}
FETCH = """#!/usr/bin/env python3
import json, os, subprocess, sys
words = ["ash-sb", "capability", "invoke", "-c", sys.argv[1], "-o", "ping", "--json"]
done = subprocess.run(words, capture_output=True, text=True)
said = {"code": done.returncode, "out": done.stdout, "err": done.stderr, "cwd": os.getcwd()}
said["token"] = os.environ.get("ASH_CONTEXT_TOKEN", "")
said["zone"] = os.environ.get("TIME_ZONE", "")
print(json.dumps(said))
"""
LOAD, RUN, SCRIPT = "skill.load", "skill.run", "scripts/fetch.py"
CAGE = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell", "services"]}
TOOLS = {**SHELL, "skill.*": {"enabled": True}}
STRICT = (
    "[capabilities]\nrequire_skill = true\n"
    '[skills.mail]\ntime_zone = "Europe/Berlin"\n'
    '[skills.picky]\nallow_chat_ids = ["chat-known"]\n'
    "[skills.quiet]\nenabled = false\n"
)


def skill_md(name: str, about: str = "", **front: Any) -> str:
    lines = [f"{key}: {json.dumps(value)}" for key, value in front.items()]
    said = about or f"Does {name} things."
    return "\n".join(["---", f"name: {name}", f"description: {said}", *lines, "---", "", "Do it."])


def write_skill(desk: Desk, name: str, place: str = ".kaged/skills", **front: Any) -> Path:
    desk.project.write(f"{place}/{name}/SKILL.md", skill_md(name, **front))
    script = desk.project.write(f"{place}/{name}/scripts/fetch.py", FETCH)
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def post(module_path: Path) -> Bridge:
    ping = operation("ping", requires_auth=False, input_schema={"type": "object"})
    listed = operation("list", requires_auth=False, input_schema=FOLDER)
    plan = {"definitions": [capability("post.box", ping, listed), capability("post.cal", ping)]}
    return Bridge(module_path, "post", plan)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], post: Bridge) -> Desk:
    made = desks(post, more=STRICT)
    made.project.describe(cage=CAGE, tools=TOOLS)
    write_skill(made, "mail", capabilities=["post.box"])
    write_skill(made, "plain")
    write_skill(made, "secret", capabilities=["post.box"], sensitive=True)
    write_skill(made, "groups", capabilities=["post.box"], access={"chat_types": ["group"]})
    write_skill(made, "picky", capabilities=["post.box"])
    write_skill(made, "quiet")
    write_skill(made, "shared", place=".claude/skills")
    made.project.write(".kaged/skills/broken/SKILL.md", "---\nname: broken\nfoo: [1\n---\n")
    made.daemon.write("skills/house/SKILL.md", skill_md("house", "Rules of the house."))
    made.daemon.write("skills/house/references/rules.md", "Be kind.\n")
    made.open()
    agree(made, "plain", "house", "shared", "quiet")
    return made


def use(desk: Desk, person: Person, tool: str, **params: Any) -> Any:
    """Call a tool for somebody; returns its result, or the error where it fails."""
    body = {"agent": "primary", "tool": tool, "params": params}
    path = f"/api/v1/projects/{desk.project.id}/tools/call"
    answer = desk.front_end.post(path, json=body, headers=person.headers)
    said = answer.json()
    return said["result"] if answer.is_success else said["error"]


def fetch(desk: Desk, person: Person, skill: str, wanted: str = "post.box") -> dict[str, Any]:
    """Run a skill's script; returns what it said of its own call."""
    done = use(desk, person, RUN, name=skill, script=SCRIPT, args=[wanted])
    assert done.get("exit_code") == 0, done
    said: dict[str, Any] = json.loads(done["stdout"])
    return said


def code_of(said: dict[str, Any]) -> str:
    assert said["code"] == 1, said
    return str(json.loads(said["err"])["error"]["code"])


def waiting(desk: Desk) -> dict[str, dict[str, Any]]:
    rows = desk.daemon.get("/inbox?kind=skill_consent&state=pending")["items"]
    return {one["title"].split()[3]: one for one in rows}


def agree(desk: Desk, *names: str) -> None:
    for name in names:
        wait_for(lambda name=name: name in waiting(desk), f"{name} asks")
        request = waiting(desk)[name]
        answer = {"digest": request["digest"], "answer": {"choice": "yes"}}
        desk.daemon.post(f"/inbox/{request['id']}/answer", answer)


def states(desk: Desk) -> dict[str, str]:
    return {one["name"]: one["state"] for one in desk.project.get("/skills")["skills"]}


@whole("SC-POL-06", "SC-POL-08", "SC-TOK-12", "SC-AMB-18")
def test_a_skill_uses_what_it_declared_once_agreed_to_and_nobody_else_does(
    desk: Desk, post: Bridge
) -> None:
    ann = somebody()
    # Nobody agreed yet: the skill can be neither loaded nor run.
    assert states(desk)["mail"] == "waiting"
    assert use(desk, ann, LOAD, name="mail")["code"] == "skill_not_agreed"
    refused = use(desk, ann, RUN, name="mail", script=SCRIPT)
    assert refused["code"] == "skill_not_agreed"
    request = waiting(desk)["mail"]
    assert any("post.box" in line for line in request["details"])
    before = len(post.calls())
    agree(desk, "mail")
    said = fetch(desk, ann, "mail")
    assert said["code"] == 0, said
    assert json.loads(said["out"])["ok"] is True
    assert len(post.calls()) == before + 1
    assert said["zone"] == "Europe/Berlin"
    assert said["cwd"] == str(desk.project.root)
    claims = read_token(said["token"])[1]
    assert (claims["sub"], claims["skill"], claims["caps"]) == (ann.user, "mail", ["post.box"])
    # What it did not declare, the second skill that declared nothing, and the agent itself.
    assert code_of(fetch(desk, ann, "mail", "post.cal")) == "capability_access_denied"
    assert code_of(fetch(desk, ann, "plain")) == "capability_access_denied"
    assert desk.code(ann, "post.box", "ping") == "capability_access_denied"
    shell = desk.run(ann, "/opt/kaged/skills/mail/scripts/fetch.py post.box; true")
    assert "No such file" in shell["stdout"] or "not found" in shell["stdout"]
    assert len(post.calls()) == before + 1
    rows = desk.audit(ann, "capability_invoke")
    assert [one["skill"] for one in rows] == ["mail", "mail", "plain", None]
    ran = [one["data"] for one in desk.daemon.audit("skill.ran")]
    assert {one["skill"] for one in ran} == {"mail", "plain"}
    agreed = [one["data"] for one in desk.daemon.audit("skill.agreed")]
    assert {one["skill"]: one["capabilities"] for one in agreed}["mail"] == ["post.box"]


@whole("SC-POL-08")
def test_a_changed_skill_asks_again_and_what_was_agreed_to_outlives_the_daemon(
    own_desk: Callable[..., Desk], post: Bridge
) -> None:
    made = own_desk(post, more=STRICT)
    made.project.describe(cage=CAGE, tools=TOOLS)
    script = write_skill(made, "mail", capabilities=["post.box"])
    made.daemon.write("skills/all/SKILL.md", skill_md("all", capabilities=["post.cal"]))
    made.daemon.write("skills/all/scripts/fetch.py", FETCH)
    desk = made.open()
    ann = somebody()
    agree(desk, "mail", "all")
    assert fetch(desk, ann, "mail")["code"] == 0
    assert fetch(desk, ann, "all", "post.cal")["code"] == 0
    assert code_of(fetch(desk, ann, "all", "post.box")) == "capability_access_denied"
    # An agent cannot change what it is told to follow.
    file = ".kaged/skills/mail/SKILL.md"
    wrote = desk.run(ann, f"echo more >> {file}")
    assert "Read-only file system" in wrote["stdout"], wrote
    refused = use(desk, ann, "file.write", path=f"./{file}", content="Obey me.")
    assert refused["code"] == "capability_denied"
    assert fetch(desk, ann, "mail")["code"] == 0
    desk.reopen()
    assert fetch(desk, ann, "all", "post.cal")["code"] == 0
    assert fetch(desk, ann, "mail")["code"] == 0
    # Another file beside it is enough, and so is the right to be executed.
    script.write_text(FETCH + "# more\n", encoding="utf-8")
    refused = use(desk, ann, RUN, name="mail", script=SCRIPT, args=["post.box"])
    assert refused["code"] == "skill_not_agreed"
    assert "changed" in " ".join(waiting(desk)["mail"]["details"])
    stale = desk.daemon.error("POST", f"/projects/{desk.project.id}/skills/mail/agree",
                              {"digest": "0" * 64})  # fmt: skip
    assert stale["code"] == "skill_changed"
    desk.daemon.cli("skill", "approve", "mail", "-p", desk.project.id)
    assert fetch(desk, ann, "mail")["code"] == 0
    desk.project.write(".kaged/skills/mail/notes.md", "New.\n")
    assert use(desk, ann, LOAD, name="mail")["code"] == "skill_not_agreed"
    # A no is remembered until the files are others.
    request = waiting(desk)["mail"]
    answer = {"digest": request["digest"], "answer": {"choice": "no"}}
    desk.daemon.post(f"/inbox/{request['id']}/answer", answer)
    assert states(desk)["mail"] == "waiting"
    assert waiting(desk) == {}
    desk.project.write(".kaged/skills/mail/notes.md", "Newer.\n")
    assert states(desk)["mail"] == "waiting"
    listed = desk.daemon.cli("inbox")
    [line] = [one for one in listed.out.splitlines() if "skill_consent" in one]
    desk.daemon.cli(*line[line.index("kaged skill approve") :].split()[1:])
    assert fetch(desk, ann, "mail")["code"] == 0


def test_a_skill_that_wants_no_accounts_is_pinned_all_the_same(
    own_desk: Callable[..., Desk],
) -> None:
    made = own_desk()
    made.project.describe(cage=CAGE, tools=TOOLS)
    script = write_skill(made, "plain")
    made.daemon.write("skills/house/SKILL.md", skill_md("house"))
    desk = made.open()
    ann = somebody()
    assert states(desk) == {"plain": "waiting", "house": "waiting"}
    for name in ("plain", "house"):
        assert use(desk, ann, LOAD, name=name)["code"] == "skill_not_agreed"
    assert "instruct agents" in waiting(desk)["plain"]["title"]
    agree(desk, "plain")
    assert use(desk, ann, LOAD, name="plain")["instructions"] == "Do it."
    assert use(desk, ann, LOAD, name="house")["code"] == "skill_not_agreed"
    desk.daemon.cli("skill", "approve", "house", "-p", desk.project.id)
    desk.reopen()
    for name in ("plain", "house"):
        assert use(desk, ann, LOAD, name=name)["instructions"] == "Do it."
    # Its instructions are others, then one of its scripts.
    file = desk.project.root / ".kaged/skills/plain/SKILL.md"
    file.write_text(skill_md("plain") + " Then obey me.", encoding="utf-8")
    assert use(desk, ann, LOAD, name="plain")["code"] == "skill_not_agreed"
    assert "changed" in " ".join(waiting(desk)["plain"]["details"])
    agree(desk, "plain")
    script.write_text("print('other')\n", encoding="utf-8")
    assert use(desk, ann, RUN, name="plain", script=SCRIPT)["code"] == "skill_not_agreed"
    desk.daemon.write("skills/house/more.md", "More.\n")
    assert states(desk) == {"plain": "waiting", "house": "waiting"}


def test_settings_of_a_skill_that_cannot_be_read_allow_nothing(
    own_desk: Callable[..., Desk],
) -> None:
    broken = '[skills.modeled]\nmodel = "fast"\n[skills.odd]\nenabled = "perhaps"\n'
    made = own_desk(more=broken)
    made.project.describe(cage=CAGE, tools=TOOLS)
    for name in ("modeled", "odd", "fine"):
        write_skill(made, name)
    desk = made.open()
    ann = somebody()
    agree(desk, "modeled", "odd", "fine")
    assert states(desk) == {"modeled": "off", "odd": "off", "fine": "ready"}
    assert use(desk, ann, LOAD, name="modeled")["code"] == "skill_denied"
    assert use(desk, ann, LOAD, name="fine")["instructions"] == "Do it."
    said = desk.daemon.cli("doctor", code=None).out
    assert "skills.modeled.model" in said
    assert "`model` of the agent" in said


def forked(desk: Desk, session: str, at: str | None = None) -> str:
    body = {} if at is None else {"at": at}
    return str(desk.project.post(f"/sessions/{session}/fork", body)["session"]["id"])


def test_the_folders_of_loaded_skills_outlive_the_daemon_and_go_with_a_fork(
    own_desk: Callable[..., Desk], model: ModelServer
) -> None:
    made = own_desk()
    made.project.describe(cage=CAGE, tools=TOOLS)
    for name in ("rules", "notes"):
        write_skill(made, name)
        made.project.write(f".kaged/skills/{name}/text.md", f"These are the {name}.\n")
    desk = made.open()
    agree(desk, "rules", "notes")
    look = "cat /opt/kaged/skills/*/text.md"

    def seen(session: str, word: str) -> str:
        model.play(word, call("shell.bash", command=look), say("Seen."))
        assert say_to(desk.project, session, word)["status"] == "completed"
        return json.dumps(model.asked(word)[-1]["messages"][-1])

    session = begin(desk.project)
    model.play("say-hello", say("Hello."))
    say_to(desk.project, session, "say-hello")
    early = desk.project.get(f"/sessions/{session}/entries")["items"][-1]["id"]
    model.play("load-the-rules", call(LOAD, name="rules"), say("Loaded."))
    say_to(desk.project, session, "load-the-rules")
    assert "These are the rules." in seen(session, "look-at-once")
    before, after = forked(desk, session, early), forked(desk, session)
    model.play("load-the-notes", call(LOAD, name="notes"), say("Loaded."))
    say_to(desk.project, session, "load-the-notes")
    assert "These are the rules." in seen(after, "look-in-the-fork")
    assert "These are the" not in seen(before, "look-in-the-early-fork")
    desk.reopen()
    both = seen(session, "look-after-a-start")
    assert "These are the rules." in both
    assert "These are the notes." in both
    fork = seen(after, "look-in-the-fork-after-a-start")
    assert "These are the rules." in fork
    assert "notes" not in fork.replace("the-notes", "")
    assert "These are the" not in seen(before, "look-in-the-early-fork-after-a-start")
    # What nobody agreed to is not brought back: neither as it is now nor as it was.
    desk.project.write(".kaged/skills/rules/text.md", "These are the hostile rules.\n")
    desk.reopen()
    last = seen(session, "look-after-a-change")
    assert "rules" not in last.replace("the-rules", "")
    assert "These are the notes." in last


@whole("SC-POL-07", "SC-POL-09")
def test_a_skill_is_denied_in_the_chats_that_it_or_the_operator_excludes(
    desk: Desk, post: Bridge
) -> None:
    agree(desk, "secret", "groups", "picky")
    ann = somebody()
    group, known = ann.in_chat("group"), ann.in_chat("private", "chat-known")
    before = len(post.calls())
    for person, skill in ((group, "secret"), (ann, "groups"), (ann, "picky"), (ann, "quiet")):
        for tool, more in (
            (LOAD, {}),
            (RUN, {"script": SCRIPT}),
        ):
            refused = use(desk, person, tool, name=skill, **more)
            assert refused["code"] == "skill_denied", (skill, refused)
    assert len(post.calls()) == before
    for person, skill in ((ann, "secret"), (group, "groups"), (known, "picky")):
        assert fetch(desk, person, skill)["code"] == 0, skill
    assert len(post.calls()) == before + 3


def test_skills_are_loaded_with_their_files_and_seen_by_the_commands_of_that_session(
    desk: Desk,
) -> None:
    ann = somebody()
    got = use(desk, ann, LOAD, name="house")
    assert got["instructions"] == "Do it."
    assert got["folder"] == "/opt/kaged/skills/house"
    assert [one["path"] for one in got["files"]] == ["references/rules.md"]
    part = use(desk, ann, LOAD, name="house", file="references/rules.md")
    assert part["content"] == "Be kind.\n"
    seen = desk.run(ann, "cat /opt/kaged/skills/house/references/rules.md")
    assert seen["stdout"] == "Be kind.\n"
    wrote = desk.run(ann, "echo no > /opt/kaged/skills/house/references/rules.md; true")
    assert "Read-only" in wrote["stdout"]
    for outside in ("../mail/SKILL.md", "/etc/passwd", "references"):
        bad = use(desk, ann, LOAD, name="house", file=outside)
        assert bad["code"] == "invalid_params", outside
    assert use(desk, ann, LOAD, name="nobody")["code"] == "skill_not_found"
    assert use(desk, ann, LOAD, name="broken")["code"] == "skill_not_found"
    loaded = [one["data"] for one in desk.daemon.audit("skill.loaded")]
    assert {"house"} <= {one["skill"] for one in loaded}


def test_people_see_every_skill_and_for_a_refused_one_the_line_and_the_reason(
    desk: Desk, tmp_path: Path
) -> None:
    found = desk.project.get("/skills")
    by_name = {one["name"]: one for one in found["skills"]}
    assert by_name["house"]["source"] == "operator"
    assert by_name["shared"]["source"] == "project"
    assert by_name["quiet"]["state"] == "off"
    broken = by_name["broken"]
    assert broken["state"] == "refused"
    assert broken["problems"][0]["line"] in {3, 4}
    listed = desk.daemon.cli("skill", "list", "-p", desk.project.id)
    assert "broken" in listed.out
    assert "SKILL.md:" in listed.out
    shown = desk.daemon.cli("skill", "show", "house", "-p", desk.project.id)
    assert "Do it." in shown.out
    desk.daemon.cli("skill", "show", "nobody", "-p", desk.project.id, code=3)
    bad = desk.daemon.cli("skill", "check", str(desk.project.root / ".kaged/skills/broken"), code=6)
    assert "SKILL.md:" in bad.out
    desk.daemon.cli("skill", "check", str(desk.project.root / ".kaged/skills/plain"))
    # The operator's skill counts before a project's of the same name, and asks for itself.
    desk.daemon.write("skills/shared/SKILL.md", skill_md("shared", "The operator's."))
    own = desk.project.get("/skills/shared")
    assert (own["source"], own["state"]) == ("operator", "waiting")
    desk.daemon.write("skills/bare/SKILL.md", "No front matter.\n")
    desk.project.get("/skills")
    checks = desk.daemon.cli("doctor", "--json", code=None).json["rows"]
    [row] = [one for one in checks if one["id"] == "skills"]
    assert "line 1" in row["cause"]


def test_skills_of_a_project_that_nobody_trusts_are_not_offered(desk: Desk) -> None:
    path = f"/projects/{desk.project.id}"
    desk.daemon.ask("PUT", f"{path}/trust", {"trusted": False})
    try:
        found = desk.project.get("/skills")
        assert found["restricted"] is True
        assert {one["source"] for one in found["skills"]} == {"operator"}
    finally:
        desk.project.reload()
    assert "plain" in states(desk)


def test_the_model_is_told_of_skills_and_accounts_and_runs_a_script(
    desk: Desk, post: Bridge, model: ModelServer
) -> None:
    if "mail" in waiting(desk):
        agree(desk, "mail")
    before = len(post.calls())
    model.play(
        "fetch-my-mail",
        call(LOAD, name="mail"),
        call(RUN, name="mail", script=SCRIPT, args=["post.box"]),
        say("Fetched."),
    )
    session = begin(desk.project)
    run = say_to(desk.project, session, "fetch-my-mail")
    assert run["status"] == "completed", run
    asked = model.asked("fetch-my-mail")
    prompt = json.dumps(asked[0]["messages"][0])
    assert "- mail: Does mail things." in prompt
    assert "- house: Rules of the house." in prompt
    assert "groups" not in prompt
    assert "quiet" not in prompt
    assert "broken" not in prompt
    assert "skill_load" in prompt
    assert "scripts of skills only" in prompt
    assert "Do it." in json.dumps(asked[-1]["messages"])
    assert len(post.calls()) == before + 1


def test_an_agent_without_accounts_is_told_nothing_and_with_them_how(
    own_desk: Callable[..., Desk], post: Bridge, model: ModelServer
) -> None:
    made = own_desk(post)
    without = {**CAGE, "capabilities": ["shell"]}
    child = {
        "model": "default", "system_prompt": "You help.", "cage": without,
        "tools": {"shell.*": {"enabled": True}},
    }  # fmt: skip
    made.project.describe(cage=CAGE, tools=TOOLS, subagents={"helper": child})
    desk = made.open()
    model.play("ask-the-helper", call("agent-helper", message="help-the-primary"), say("Done."))
    model.play("help-the-primary", say("Helped."))
    run = say_to(desk.project, begin(desk.project), "ask-the-helper")
    assert run["status"] == "completed", run
    primary = json.dumps(model.asked("ask-the-helper")[0]["messages"][0])
    helper = json.dumps(model.asked("help-the-primary")[0]["messages"][0])
    assert "ash-sb capability" in primary
    assert "ash-sb" not in helper
    code, out, err = desk.ash(somebody(), "describe", "-c", "post.box")
    assert code == 0, err
    assert "- list: Does list." in out
    assert '"required": ["folder", "limit"]' in out
    wanted = 'invoke -c post.box -o list --input-json \'{"folder": "text", "limit": 3}\''
    assert wanted in out
    [line] = [one for one in out.splitlines() if "-o list" in one]
    done = desk.run(somebody(), line.partition("Example: ")[2])
    assert done["exit_code"] == 0, done
    code, out, _ = desk.ash(somebody(), "describe")
    assert "Total: 3 operation(s)" in out
    assert desk.ash(somebody(), "describe", "-c", "post.none")[0] == 1


@whole("SC-TOK-12")
def test_the_token_says_thread_and_names_that_the_front_end_vouched_for(desk: Desk) -> None:
    ann = somebody()
    body = {
        "agent": "primary",
        "tool": RUN,
        "params": {"name": "plain", "script": SCRIPT, "args": ["post.box"]},
    }
    more = {
        "X-Kaged-Thread-Id": "t-7",
        "X-Kaged-Username": "ann",
        "X-Kaged-Display-Name": "Ann%20%C3%84rmel",
    }
    path = f"/api/v1/projects/{desk.project.id}/tools/call"
    answer = desk.front_end.post(path, json=body, headers={**ann.headers, **more})
    said = json.loads(answer.json()["result"]["stdout"])
    claims = read_token(said["token"])[1]
    assert (claims["thread_id"], claims["chat_id"]) == ("t-7", ann.chat_id)
    assert (claims["source_username"], claims["source_display_name"]) == ("ann", "Ann Ärmel")
    row = desk.audit(ann, "capability_invoke")[0]
    assert row["thread_id"] == "t-7"
    bad = desk.front_end.post(path, json=body, headers={**ann.headers, "X-Kaged-Thread-Id": "a b"})
    assert bad.status_code == 403
