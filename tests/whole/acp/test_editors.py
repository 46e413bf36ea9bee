"""Editors use agents over the Agent Client Protocol: what they are told, asked and refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, resource_link_block, text_block
from acp.helpers import embedded_text_resource, resource_block

from whole.harness.acp import acpx, editor
from whole.harness.daemon import KAGED, PATIENCE_S, Daemon, wait_for
from whole.harness.model import ModelServer, call, calls, refuse, say
from whole.harness.project import Project
from whole.harness.talk import asked, fresh, play_late

NEVER_MS = 60_000


def run(talk: Coroutine[Any, Any, None]) -> None:
    """Run a conversation of an editor."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await talk

    asyncio.run(bounded())


def test_an_editor_sees_words_calls_and_diffs_as_they_come(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.write("src/a.py", "one = 1\n")
    word, second = fresh(), fresh()
    model.play(
        word,
        calls(("file.read", {"path": "src/a.py"}), text="I look."),
        call("edit.text", path="src/a.py", old_string="one = 1", new_string="one = 2"),
        call("file.read", path="missing.txt"),
        say("It is two now."),
    )
    model.play(second, say("Nothing else."))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            # A folder below the project's belongs to it too.
            made = await one.agent.new_session(str(project.root / "src"))
            assert await one.say(made.session_id, f"{word} please") == "end_turn"
            read, edited, missing = one.of("tool_call")
            assert (read["kind"], edited["kind"]) == ("read", "edit")
            assert read["locations"] == [{"path": str(project.root / "src/a.py")}]
            diff = {"path": str(project.root / "src/a.py"), "oldText": "one = 1"}
            assert edited["content"] == [{**diff, "newText": "one = 2", "type": "diff"}]
            ended = {one_["toolCallId"]: one_ for one_ in one.of("tool_call_update")}
            assert ended[read["toolCallId"]]["status"] == "completed"
            assert "1: one = 1" in str(ended[read["toolCallId"]]["content"])
            failed = ended[missing["toolCallId"]]
            assert failed["status"] == "failed"
            assert "missing.txt" in str(failed["content"])
            assert one.words(made.session_id) == "I look.It is two now."
            told = len(one.told)
            assert await one.say(made.session_id, f"{second} please") == "end_turn"
            assert one.words(made.session_id).endswith("Nothing else.")
            assert len(one.told) > told
            listed = await one.agent.list_sessions(cwd=str(project.root))
            assert made.session_id in {row.session_id for row in listed.sessions}

    run(talk())
    assert project.read("src/a.py") == "one = 2\n"


def test_a_session_is_told_again_under_the_same_call_ids_and_can_be_forked(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.write("a.txt", "hello\n")
    word, later = fresh(), fresh()
    model.play(word, call("file.read", path="a.txt"), say("I have read it."))
    model.play(later, say("In the fork."))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            made = await one.agent.new_session(str(project.root))
            await one.say(made.session_id, f"{word} please")
            live = [row["toolCallId"] for row in one.of("tool_call")]
        async with editor(daemon, project.root) as two:
            await two.agent.load_session(str(project.root), made.session_id)
            assert f"{word} please" in str(two.of("user_message_chunk"))
            assert [row["toolCallId"] for row in two.of("tool_call")] == live
            (ended,) = two.of("tool_call_update")
            assert (ended["toolCallId"], ended["status"]) == (live[0], "completed")
            assert two.words(made.session_id) == "I have read it."
            fork = await two.agent.fork_session(session_id=made.session_id, cwd=str(project.root))
            assert fork.session_id != made.session_id
            assert await two.say(fork.session_id, f"{later} please") == "end_turn"
            assert two.words(fork.session_id) == "In the fork."
            resumed = len(two.told)
            await two.agent.resume_session(session_id=made.session_id, cwd=str(project.root))
            assert "user_message_chunk" not in {
                row["sessionUpdate"] for _, row in two.told[resumed:]
            }

    run(talk())


@pytest.mark.parametrize("answer", ["0", "1"])
def test_a_question_with_choices_is_asked_as_a_permission(
    daemon: Daemon, project: Project, model: ModelServer, answer: str
) -> None:
    word = fresh()
    question = {"id": "which", "title": "Which one?", "options": ["left", "right"]}
    model.play(word, call("kaged.ask", questions=[question]), say("I go there."))

    async def talk() -> None:
        async with editor(daemon, project.root, pick=lambda _: answer) as one:
            made = await one.agent.new_session(str(project.root))
            assert await one.say(made.session_id, f"{word} please") == "end_turn"
            (put,) = one.asked
            assert put["call"]["title"] == "Which one?"
            assert [row["name"] for row in put["options"]] == ["left", "right"]
            assert one.words(made.session_id) == "I go there."

    run(talk())
    assert ["left", "right"][int(answer)] in str(asked(model, word)[-1]["messages"][-1])


def test_a_form_is_filled_in_at_the_editor_and_without_one_the_next_prompt_answers(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    form, free = fresh(), fresh()
    fields = [{"name": "city", "label": "Where to?", "type": "text", "required": True}]
    question = {"id": "why", "title": "Why?", "options": []}
    model.play(form, call("kaged.form", fields=fields), say("I book it."))
    model.play(free, call("kaged.ask", questions=[question]), say("I see."))

    async def talk() -> None:
        async with editor(daemon, project.root, fills_in={"city": "Lisbon"}) as one:
            made = await one.agent.new_session(str(project.root))
            assert await one.say(made.session_id, f"{form} please") == "end_turn"
            assert "city" in one.asked[0]["form"]["requestedSchema"]["properties"]
            assert one.words(made.session_id) == "I book it."
        async with editor(daemon, project.root) as two:
            made = await two.agent.new_session(str(project.root))
            assert await two.say(made.session_id, f"{free} please") == "end_turn"
            assert "Why?" in two.words(made.session_id)
            assert await two.say(made.session_id, "Because of the sea.") == "end_turn"
            assert two.words(made.session_id).endswith("I see.")
            assert two.asked == []

    run(talk())
    assert "Lisbon" in str(asked(model, form)[-1]["messages"][-1])
    assert "Because of the sea." in str(asked(model, free)[-1]["messages"])


def test_one_session_is_canceled_and_another_goes_on(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    stuck, other, after = fresh(), fresh(), fresh()
    play_late(model, stuck, NEVER_MS, say("Never."))
    model.play(other, say("Still here."))
    model.play(after, say("And here."))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            first = (await one.agent.new_session(str(project.root))).session_id
            second = (await one.agent.new_session(str(project.root))).session_id
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(one.say(first, f"{stuck} please"))
                await asyncio.to_thread(lambda: _until_asked(model, stuck))
                with pytest.raises(RequestError, match="still at work"):
                    await one.say(first, "hello?")
                assert await one.say(second, f"{other} please") == "end_turn"
                await one.agent.cancel(session_id=first)
            assert waiting.result() == "cancelled"
            assert one.words(second) == "Still here."
            assert await one.say(first, f"{after} please") == "end_turn"
            assert one.words(first) == "And here."

    run(talk())


def test_an_editor_chooses_the_agent_and_the_model(
    own: Callable[..., Daemon], tmp_path: Path, model: ModelServer
) -> None:
    local = model.local_toml() + model.local_toml("other", name="gpt-4o-mini")
    daemon = own(local=local)
    daemon.start()
    reader = {"model": "default", "system_prompt": "You read.", "description": "Reads."}
    project = daemon.load(Project(tmp_path / "p", subagents={"reader": reader}))
    word = fresh()
    model.play(word, say("As the reader."))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            made = await one.agent.new_session(str(project.root))
            modes = {row.id: row.description for row in made.modes.available_modes}
            assert made.modes.current_mode_id == "primary"
            assert modes["primary.subagents.reader"] == "Reads."
            await one.agent.set_session_mode(
                session_id=made.session_id, mode_id="primary.subagents.reader"
            )
            changed = await one.agent.set_config_option(
                session_id=made.session_id, config_id="model", value="other"
            )
            assert changed.config_options[0].current_value == "other"
            with pytest.raises(RequestError, match="Use one of"):
                await one.agent.set_config_option(
                    session_id=made.session_id, config_id="model", value="unknown"
                )
            with pytest.raises(RequestError, match="no agent"):
                await one.agent.set_session_mode(session_id=made.session_id, mode_id="nobody")
            assert await one.say(made.session_id, f"{word} please") == "end_turn"
            assert one.words(made.session_id) == "As the reader."

    run(talk())
    (body,) = asked(model, word)
    assert body["model"] == "gpt-4o-mini"
    assert "You read." in str(body["messages"][0])


def test_files_of_the_editor_are_named_as_the_agent_names_them(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh()
    model.play(word, say("Seen."))
    uri = f"file://{project.root}/src/a.py"

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            made = await one.agent.new_session(str(project.root))
            answer = await one.agent.prompt(
                session_id=made.session_id,
                prompt=[
                    text_block(f"{word} look at"),
                    resource_link_block("a.py", uri),
                    resource_block(embedded_text_resource(uri, "one = ```1```\n")),
                ],
            )
            assert answer.stop_reason == "end_turn"

    run(talk())
    said = str(asked(model, word)[0]["messages"][-1]["content"])
    assert f"{word} look at src/a.py" in said
    assert "src/a.py:\n````\none = ```1```" in said


def test_commands_are_listed_and_undo_takes_back_what_the_last_run_changed(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh()
    model.play(word, call("file.write", path="new.txt", content="new\n"), say("Written."))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            made = await one.agent.new_session(str(project.root))
            (listed,) = one.of("available_commands_update")
            names = {row["name"] for row in listed["availableCommands"]}
            assert {"undo", "compact"} <= names
            assert await one.say(made.session_id, "/undo") == "end_turn"
            assert "Nothing" in one.words(made.session_id)
            await one.say(made.session_id, f"{word} please")
            assert (project.root / "new.txt").exists()
            assert await one.say(made.session_id, "/undo") == "end_turn"
            assert "new.txt" in one.words(made.session_id)

    run(talk())
    assert not (project.root / "new.txt").exists()


def test_what_cannot_be_done_is_said_with_what_helps(
    daemon: Daemon, project: Project, tmp_path: Path, model: ModelServer
) -> None:
    word = fresh()
    model.play(word, refuse(401, "The key is wrong.", type="authentication_error"))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            with pytest.raises(RequestError, match="kaged project init") as nowhere:
                await one.agent.new_session(str(tmp_path.parent / "nowhere"))
            assert _code(nowhere.value) == "project_not_found"
            with pytest.raises(RequestError, match="absolute"):
                await one.agent.new_session("src")
            with pytest.raises(RequestError, match="not open here"):
                await one.say("ses_unknown", "hello")
            with pytest.raises(RequestError) as unknown:
                await one.agent.load_session(str(project.root), "ses_01M7RY89XJQ6BPJEBSSHQF0YHY")
            assert _code(unknown.value) == "session_not_found"
            made = await one.agent.new_session(str(project.root))
            with pytest.raises(RequestError, match="empty"):
                await one.say(made.session_id, "  ")
            with pytest.raises(RequestError) as failed:
                await one.say(made.session_id, f"{word} please")
            assert _code(failed.value).startswith("model_")

    run(talk())


def test_an_answer_that_was_cut_off_is_told_as_that(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    word = fresh()
    model.play(word, {**say("Half of"), "finishReason": "length"})

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            made = await one.agent.new_session(str(project.root))
            assert await one.say(made.session_id, f"{word} please") == "max_tokens"
            assert one.words(made.session_id) == "Half of"

    run(talk())


def test_a_folder_with_a_project_file_is_loaded_and_held_to_reading(
    daemon: Daemon, tmp_path: Path, model: ModelServer
) -> None:
    unseen = Project(tmp_path / "unseen")
    word = fresh()
    model.play(word, call("file.write", path="x.txt", content="x"), say("Refused."))

    async def talk() -> None:
        async with editor(daemon, unseen.root) as one:
            made = await one.agent.new_session(str(unseen.root))
            assert "kaged project trust" in one.words(made.session_id)
            await one.say(made.session_id, f"{word} please")
            assert one.of("tool_call_update")[-1]["status"] == "failed"

    run(talk())
    assert not (unseen.root / "x.txt").exists()


def test_a_daemon_that_is_killed_and_started_again_is_found_again(
    own: Callable[..., Daemon], tmp_path: Path, model: ModelServer
) -> None:
    daemon = own()
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    stuck, word = fresh(), fresh()
    play_late(model, stuck, NEVER_MS, say("Never."))
    model.play(word, say("Back again."))

    async def talk() -> None:
        async with editor(daemon, project.root) as one:
            made = await one.agent.new_session(str(project.root))

            async def interrupt() -> None:
                await asyncio.to_thread(lambda: _until_asked(model, stuck))
                await asyncio.to_thread(daemon.kill)
                await asyncio.to_thread(daemon.start)

            async with asyncio.TaskGroup() as group:
                group.create_task(interrupt())
                with pytest.raises(RequestError, match="session resume"):
                    await one.say(made.session_id, f"{stuck} please")
            assert await one.say(made.session_id, f"{word} please") == "end_turn"
            assert one.words(made.session_id) == "Back again."

    run(talk())


def test_lines_that_are_no_messages_are_passed_over(daemon: Daemon, project: Project) -> None:
    hello = {"protocolVersion": 1, "clientCapabilities": {}}
    lines = [
        "no json",
        "[]",
        "null",
        "{}",
        '{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":5}}',
        '{"jsonrpc":"2.0","id":8,"method":"no/such","params":{}}',
        json.dumps({"jsonrpc": "2.0", "id": 9, "method": "initialize", "params": hello}),
    ]
    answers = _lines(daemon, project, lines)
    assert answers[7]["error"]["code"] == -32602
    assert answers[8]["error"]["code"] == -32601
    assert answers[9]["result"]["agentInfo"]["name"] == "kaged"


def test_too_many_lines_that_are_no_messages_end_it(daemon: Daemon, project: Project) -> None:
    Daemon.spoken += 1
    done = subprocess.run(
        [KAGED, "acp"],
        input="no message\n" * 200,
        env=daemon.env,
        cwd=project.root,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert "acp_stream_ended" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_from_the_registry_works_unmodified(
    daemon: Daemon, project: Project, model: ModelServer
) -> None:
    project.write("a.txt", "hello\n")
    first, second = fresh(), fresh()
    question = {"id": "which", "title": "Which one?", "options": ["left", "right"]}
    model.play(
        first,
        call("file.read", path="a.txt"),
        call("kaged.ask", questions=[question]),
        say("I go left."),
    )
    model.play(second, say("Again."))
    said = acpx(daemon, project.root, "--approve-all", "exec", f"{first} please")
    assert "file.read a.txt" in said
    assert "I go left." in said
    assert "end_turn" in said
    assert "Again." in acpx(daemon, project.root, "exec", f"{second} please")


def _code(error: RequestError) -> str:
    assert error.data is not None
    return str(error.data["code"])


def _until_asked(model: ModelServer, word: str) -> None:
    wait_for(lambda: model.asked(word), f"a request with {word}")


def _lines(daemon: Daemon, project: Project, lines: list[str]) -> dict[int, dict[str, Any]]:
    """Send lines to `kaged acp`, and return its answers by their ids."""
    Daemon.spoken += 1
    with subprocess.Popen(
        [KAGED, "acp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=daemon.env,
        cwd=project.root,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        wanted = sum('"id"' in line for line in lines)
        answers = [json.loads(process.stdout.readline()) for _ in range(wanted)]
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    return {one["id"]: one for one in answers}
