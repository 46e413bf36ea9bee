"""What tools answer, as it enters the window of a model: within a budget, readable to the end."""

from __future__ import annotations

import re
from typing import Any

from whole.harness.daemon import Daemon
from whole.harness.mcp import python
from whole.harness.model import ModelServer, call, calls, refuse, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, tool_answers

CONTEXT_CODE = "context_length_exceeded"
HANDLE = re.compile(r"result:/res_[0-9A-Z]{26}")
LONG = 'for i in $(seq 1 20000); do echo "line $i"; done; echo FAILED at the end; exit 3'


def answers(model: ModelServer, run: dict[str, Any]) -> list[str]:
    """Return what the tools of a run answered, as the model's last request shows it."""
    return tool_answers(asked(model, run["word"])[-1])


def limit(daemon: Daemon, result_tokens: int, read_tokens: int) -> None:
    """Set the budgets: what the model server remembers of a request has 64 KiB."""
    config = (daemon.home / "config.toml").read_text(encoding="utf-8").split("\n[sessions]")[0]
    values = f"result_tokens = {result_tokens}\nread_tokens = {read_tokens}\n"
    daemon.write("config.toml", f"{config}\n[sessions]\n{values}")
    daemon.restart()


def test_a_long_result_keeps_its_head_and_tail_and_the_rest_is_read_by_its_handle(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer
) -> None:
    limit(daemon, 1500, 4000)
    run = talk.hear(call("shell.bash", command=LONG), say("It failed."))
    (text,) = answers(model, run)
    assert len(text.encode()) <= 1500 * 4
    assert "\nexit_code: 3\n" in text[:200]
    assert "\nline 1\n" in text
    assert text.rstrip().endswith("FAILED at the end")
    handle = HANDLE.findall(text)[0]
    # The record of the call, which people and programs see, has its own limits and not these.
    (made,) = [one for one in talk.calls() if one["run_id"] == run["id"]]
    assert made["result"]["exit_code"] == 3
    assert "line 10000\n" in made["result"]["stdout"]

    again = talk.hear(
        call("file.read", path=handle, offset=10_000, limit=3),
        call("search.grep", pattern="^line 15000$", path=handle, output_mode="content", context=1),
        say("Found."),
    )
    read, found = answers(model, again)[-2:]
    assert f"path: {handle}\n" in read
    number = int(re.findall(r"^10000: line (\d+)$", read, re.MULTILINE)[0])
    assert re.search(rf"^10001: line {number + 1}$", read, re.MULTILINE)
    assert re.search(r"- line 14999\n\d+: line 15000\n\d+- line 15001$", found)

    # Nobody else reads it: another session of the same agent, a caller by HTTP, another tool.
    other = Talk(project, model)
    assert other.refusal("file.read", path=handle)["code"] == "result_not_found"
    assert project.fail("search.grep", path=handle, pattern="x")["code"] == "result_not_found"
    assert talk.refusal("file.write", path=handle, content="x")["code"] == "invalid_params"

    # A fork reads on what its window speaks of; a restart changes nothing; then both go.
    fork = Talk(project, model, str(talk.post("/fork", {})["session"]["id"]))
    assert fork.result("file.read", path=handle, limit=1)["total_lines"] > 20_000
    daemon.restart()
    assert talk.result("file.read", path=handle, limit=1)["total_lines"] > 20_000
    daemon.ask("DELETE", f"/projects/{project.id}/sessions/{talk.id}")
    assert fork.result("file.read", path=handle, limit=1)["total_lines"] > 20_000
    daemon.ask("DELETE", f"/projects/{project.id}/sessions/{fork.id}")
    kept = {one.name for one in (daemon.home / "results").iterdir()}
    assert not {talk.id, fork.id} & kept


def test_a_long_file_is_read_on_where_it_lies(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer
) -> None:
    limit(daemon, 1500, 4000)
    project.write("long.txt", "".join(f"{number} {'x' * 100}\n" for number in range(1, 2001)))
    run = talk.hear(call("file.read", path="long.txt"), say("Long."))
    (text,) = answers(model, run)
    assert len(text.encode()) <= 4000 * 4
    assert "\n1: 1 xxx" in text
    assert "\n2000: 2000 xxx" in text
    found = re.search(r"file.read ./long.txt with offset (\d+) and limit (\d+)\]", text)
    assert found is not None
    assert not HANDLE.search(text)
    offset, missing = map(int, found.groups())
    assert missing > 1500
    more = talk.hear(call("file.read", path="long.txt", offset=offset, limit=20), say("Read."))
    rest = answers(model, more)[-1]
    assert f"\n{offset}: {offset} xxx" in rest
    assert f"\n{offset + 19}: " in rest


def test_the_operator_sets_the_budget(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer
) -> None:
    limit(daemon, 600, 1200)
    project.write("long.txt", "some words\n" * 1500)
    run = talk.hear(
        call("shell.bash", command=LONG), call("file.read", path="long.txt"), say("Done.")
    )
    shell, read = answers(model, run)
    assert 300 * 4 < len(shell.encode()) <= 600 * 4
    assert 600 * 4 < len(read.encode()) <= 1200 * 4


def test_a_window_that_overflows_by_its_last_results_shows_them_shorter_and_goes_on(
    daemon: Daemon, project: Project, talk: Talk, model: ModelServer
) -> None:
    """The turn is asked again with what fits, and the session is not stuck."""
    limit(daemon, 3000, 4000)
    full = refuse(400, "This model's maximum context length is 1 token.", code=CONTEXT_CODE)
    read = ("shell.bash", {"command": LONG})
    run = talk.hear(calls(read, read), full, say("It fits now."))
    assert run["status"] == "completed"
    first, last = (tool_answers(one) for one in asked(model, run["word"])[-2:])
    assert len(last) == 2
    assert sum(map(len, last)) < sum(map(len, first)) * 0.6
    for text in last:
        assert "exit_code: 3" in text[:200]
        handle = HANDLE.findall(text)[0]
        assert talk.result("file.read", path=handle, limit=1)["total_lines"] > 20
    again = talk.hear(say("Still here."))
    assert again["status"] == "completed"
    assert tool_answers(asked(model, again["word"])[-1])[:2] == last
    events = daemon.audit("compaction.completed", project=project.id)
    assert events[-1]["data"]["strategy"] == "shorten"


def test_a_client_of_the_agent_gets_the_text_cut_and_the_structure_whole(
    daemon: Daemon, project: Project
) -> None:
    """What it shows its model is the text; a program reads the structure."""
    limit(daemon, 8_000, 25_000)
    project.describe(cage="disabled")
    project.reload()

    def step(tool: str, **arguments: Any) -> tuple[str, Any]:
        return "callTool", {"name": tool, "arguments": arguments}

    _, long, short = python(
        daemon,
        project,
        step("shell_bash", command=LONG),
        step("shell_bash", command="echo short"),
    )
    text = long["result"]["content"][0]["text"]
    assert len(text.encode()) <= 8_000 * 4
    assert "exit_code: 3\n" in text[:200]
    assert HANDLE.search(text)
    assert "line 10000\n" in long["result"]["structuredContent"]["stdout"]
    assert short["result"]["content"][0]["text"].startswith('{"stdout":"short')
