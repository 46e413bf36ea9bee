"""The part of `kaged plugin` that asks the operator: consents, changed files, knobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.output import Output, show_lines, text_of
from kaged.cli.runner import DaemonClient, daemon_command, find_project

Name = Annotated[str, typer.Argument(help="The plugin's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree without being asked.")]
ConsentId = Annotated[str, typer.Argument(help="The request's id, from `kaged plugin consents`.")]
Project = Annotated[
    str, typer.Option("--project", help="The loaded project: its id, slug or folder.")
]
AgentOfProject = Annotated[str, typer.Option("--agent", help="The agent's path in the project.")]


def require_consent(question: str, output: Output, *, yes: bool) -> None:
    """Ask the operator; raise `plugin_consent_missing` for anything but a yes."""
    if yes:
        return
    if not output.for_people:
        raise KagedError(
            "There is no terminal to ask for consent on.",
            code="plugin_consent_missing",
            fix="Run the command in a terminal, or pass --yes.",
        )
    if input(f"{question} ").strip().lower() not in {"y", "yes"}:
        raise KagedError("You did not agree. Nothing was changed.", code="plugin_consent_missing")


def register_consents(app: typer.Typer) -> None:
    """Add the commands that ask for consent, and the one for knobs."""
    daemon_command(app, "consents", view=_show_consents)(consents)
    daemon_command(app, "approve")(approve)
    daemon_command(
        app,
        "deny",
        view="{found[name]} is not installed. Loading the project again asks again.",
    )(deny)
    daemon_command(app, "renew", view=show_lines)(renew)
    daemon_command(app, "knobs")(knobs)


def _show_consents(found: Any, output: Output) -> None:
    if not found:
        output.line("No consent requests are pending.")
        return
    columns = ["id", "name", "step", "version", "source", "answer"]
    output.table(columns, [_row(one, columns) for one in found])
    output.note(
        "`kaged plugin approve ID` shows a request and asks; `kaged plugin deny ID` refuses it."
    )


def consents(client: DaemonClient, project: Project = "") -> Any:
    """List the plugins that projects ask to fetch, install or use."""
    wanted = find_project(client, project)["id"] if project else None
    return client.get("/consents", {"project_id": wanted})["items"]


def approve(
    client: DaemonClient,
    output: Output,
    consent_id: ConsentId,
    path: Annotated[
        Path | None,
        typer.Option("--path", help="The plugin's directory, if the project names no source."),
    ] = None,
    enable: Annotated[
        bool, typer.Option("--enable", help="Also enable the plugin and start it.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Show what a project asks for and agree to it, step by step."""
    done = _agree(client, _consent(client, consent_id), path, output, yes=yes)
    while done["next"] is not None:
        done = _agree(client, done["next"], path, output, yes=yes)
    if enable:
        done["state"] = client.post(f"/plugins/{done['name']}/enable")["state"]
    output.result(done)
    output.line(f"✓ {done['name']} can be used by the project")
    if enable:
        output.line(f"{done['name']} is {done['state']}.")
    else:
        output.note(f"If it is not running, run `kaged plugin enable {done['name']}`.")


def deny(client: DaemonClient, consent_id: ConsentId) -> Any:
    """Refuse what a project asks for; the project stays pending."""
    return client.post(f"/consents/{consent_id}", {"allowed": False})


def renew(client: DaemonClient, output: Output, name: Name, yes: Yes = False) -> Any:
    """Show the changed files of an installed plugin and approve them."""
    shown = client.get(f"/plugins/{name}/renewal")
    show_lines(shown, output)
    require_consent(shown["question"], output, yes=yes)
    return client.post(f"/plugins/{name}/renewal", {"digest": shown["digest"]})


def knobs(
    client: DaemonClient,
    output: Output,
    name: Name,
    project: Project = "",
    agent: AgentOfProject = "primary",
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="KNOB=VALUE: write it into the project file; repeatable."),
    ] = None,
) -> None:
    """Show a plugin's knobs, or set them for an agent of a project."""
    chosen = _project_of(client, name, project, needed=bool(assign))
    known = client.get(f"/plugins/{name}/knobs")
    changes: list[Any] = []
    for text in assign or ():
        knob, value = _assignment(text, known)
        body = {"project_id": chosen, "agent_path": agent, "value": value}
        changes.append(client.put(f"/plugins/{name}/knobs/{knob}", body))
    where = {"project_id": chosen, "agent_path": agent} if chosen else None
    found = client.get(f"/plugins/{name}/knobs", where)
    output.result(changes if assign else found)
    for change in changes:
        output.line(f"{change['knob']}: {text_of(change['old'])} → {text_of(change['new'])}")
        if change["note"]:
            output.note(change["note"])
    if assign:
        return
    columns = ["knob", "type", *(["value"] if chosen else []), "default", "label", "binds_to"]
    rows = [[knob, *(text_of(one.get(key)) for key in columns[1:])] for knob, one in found.items()]
    output.table(columns, rows)


def _consent(client: DaemonClient, consent_id: str) -> dict[str, Any]:
    for one in client.get("/consents")["items"]:
        if one["id"] == consent_id:
            return one
    raise KagedError(
        f"There is no consent request {consent_id!r}.",
        code="plugin_consent_missing",
        fix="List them with `kaged plugin consents`.",
    )


def _agree(
    client: DaemonClient, asked: dict[str, Any], path: Path | None, output: Output, *, yes: bool
) -> dict[str, Any]:
    """Show one question, ask it, and send the approval; return the daemon's answer."""
    prompt = asked["prompt"]
    for line in prompt["lines"] if prompt else _facts(asked):
        output.line(line)
    body: dict[str, Any] = {"allowed": True}
    if prompt:
        body["digest"] = prompt["digest"]
    if asked["step"] == "path":
        if path is None:
            raise KagedError(
                f"{asked['name']}: {asked['source']}",
                code="invalid_params",
                fix="Name its directory with --path.",
            )
        body["path"] = str(path.absolute())
    else:
        require_consent(asked["question"], output, yes=yes)
    answer: dict[str, Any] = client.post(f"/consents/{asked['id']}", body)
    return answer


def _facts(asked: dict[str, Any]) -> list[str]:
    found = [
        f"  name: {asked['name']}",
        f"  package: {asked['package']}",
        f"  version: {asked['version'] or 'any'}",
        f"  source: {asked['source']}",
    ]
    return [*found, f"  problem: {asked['problem']}"] if asked["problem"] else found


def _row(one: dict[str, Any], columns: list[str]) -> list[str]:
    answer = "declined" if one["declined"] else "open"
    return [text_of({**one, "answer": answer}.get(column)) for column in columns]


def _project_of(client: DaemonClient, name: str, project: str, *, needed: bool) -> str | None:
    """Return the project that is meant: the one named, or the only one that uses the plugin."""
    if project:
        return str(find_project(client, project)["id"])
    using = client.get(f"/plugins/{name}").get("projects") or []
    if len(using) == 1:
        return str(using[0])
    if needed:
        raise KagedError(
            f"{name} is used by {len(using)} projects.",
            code="invalid_params",
            fix="Choose one with --project." if using else "Load a project that declares it.",
        )
    return None


def _assignment(text: str, known: dict[str, Any]) -> tuple[str, Any]:
    """Read KNOB=VALUE, the value by the knob's own type."""
    knob, equals, value = text.partition("=")
    if not equals or knob not in known:
        raise KagedError(
            f"{text!r} sets no knob of this plugin.",
            code="invalid_params",
            fix=f"Write KNOB=VALUE with one of these knobs: {', '.join(known) or 'none'}.",
        )
    kind = known[knob]["type"]
    plain = kind in {"range", "int_range", "boolean"} or (kind == "model_alias" and value == "null")
    if not plain:
        return knob, value
    try:
        return knob, json.loads(value)
    except ValueError as error:
        raise KagedError(
            f"{value!r} is not a value for {knob} ({kind}).", code="invalid_params"
        ) from error
