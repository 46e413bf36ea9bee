"""The part of `kaged plugin` that asks the operator: consents of projects, changed files, knobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from kaged.base import KagedError
from kaged.cli.commands.project import find_project
from kaged.cli.context import AsJson, command, daemon
from kaged.cli.output import Output

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

Name = Annotated[str, typer.Argument(help="The plugin's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree without being asked.")]
ConsentId = Annotated[str, typer.Argument(help="The request's id, from `kaged plugin consents`.")]
Project = Annotated[
    str, typer.Option("--project", help="A loaded project: its id, its slug or its folder.")
]


class ConsentRefused(KagedError):
    """The operator said no, or nobody was there to ask."""

    code: ClassVar[str] = "plugin_consent_missing"


class ParametersInvalid(KagedError):
    """The parameters on the command line are not what the command takes."""

    code: ClassVar[str] = "invalid_params"


def require_consent(question: str, output: Output, *, yes: bool) -> None:
    """Ask the operator; raises ConsentRefused for anything but a yes."""
    if yes:
        return
    if not output.for_people:
        raise ConsentRefused(
            "there is no terminal to ask for consent on", fix="run it on a terminal, or pass --yes"
        )
    if input(f"{question} ").strip().lower() not in {"y", "yes"}:
        raise ConsentRefused("not agreed to; nothing was changed")


def register_consents(app: typer.Typer) -> None:
    """Add the commands about what projects ask for."""

    @command(app, "consents")
    def consents(project: Project = "", as_json: AsJson = False) -> None:
        """List what projects ask of you: plugins to fetch, to install or to use."""
        output = Output(as_json=as_json)
        with daemon() as client:
            wanted = find_project(client, project)["id"] if project else None
            found = client.get("/consents", {"project_id": wanted})["items"]
        output.result(found)
        if not found:
            output.line("No consent requests are pending.")
            return
        columns = ["id", "name", "step", "version", "source", "answer"]
        output.table(columns, [_row(one, columns) for one in found])
        output.note("`kaged plugin approve ID` shows one and asks; `kaged plugin deny ID` says no.")

    @command(app, "approve")
    def approve(
        consent_id: ConsentId,
        path: Annotated[
            Path | None,
            typer.Option(
                "--path", help="The plugin's directory, when the project names no source."
            ),
        ] = None,
        enable: Annotated[
            bool, typer.Option("--enable", help="Also enable the plugin and start it.")
        ] = False,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        """Look at what a project asks for and agree to it, step by step."""
        output = Output(as_json=as_json)
        with daemon() as client:
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
            output.note(f"Unless it runs already: `kaged plugin enable {done['name']}`.")

    @command(app, "deny")
    def deny(consent_id: ConsentId, as_json: AsJson = False) -> None:
        """Refuse what a project asks for; the project stays pending."""
        output = Output(as_json=as_json)
        with daemon() as client:
            done = client.post(f"/consents/{consent_id}", {"allowed": False})
        output.result(done)
        output.line(f"{done['name']} is not installed; loading the project again asks again.")

    @command(app, "renew")
    def renew(name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
        """Look at the changed files of an installed plugin and agree to them."""
        output = Output(as_json=as_json)
        with daemon() as client:
            shown = client.get(f"/plugins/{name}/renewal")
            for line in shown["lines"]:
                output.line(line)
            require_consent(shown["question"], output, yes=yes)
            done = client.post(f"/plugins/{name}/renewal", {"digest": shown["digest"]})
        output.result(done)
        for line in done["lines"]:
            output.line(line)


def register_knobs(app: typer.Typer) -> None:
    """Add the command about a plugin's settings."""

    @command(app, "knobs")
    def knobs(
        name: Name,
        project: Project = "",
        agent: Annotated[
            str, typer.Option("--agent", help="The agent's path in the project.")
        ] = "primary",
        assign: Annotated[
            list[str] | None,
            typer.Option("--set", help="KNOB=VALUE: write it into the project file; repeatable."),
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Show the settings that a plugin offers, or change them for an agent of a project."""
        output = Output(as_json=as_json)
        with daemon() as client:
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
            output.line(f"{change['knob']}: {_text(change['old'])} → {_text(change['new'])}")
            if change["note"]:
                output.note(change["note"])
        if assign:
            return
        columns = ["knob", "type", *(["value"] if chosen else []), "default", "label", "binds_to"]
        output.table(
            columns,
            [
                [knob, *(_text(one.get(column)) for column in columns[1:])]
                for knob, one in found.items()
            ],
        )


def _consent(client: DaemonClient, consent_id: str) -> dict[str, Any]:
    for one in client.get("/consents")["items"]:
        if one["id"] == consent_id:
            return one
    raise ConsentRefused(
        f"there is no consent request {consent_id!r}", fix="`kaged plugin consents` lists them"
    )


def _agree(
    client: DaemonClient, asked: dict[str, Any], path: Path | None, output: Output, *, yes: bool
) -> dict[str, Any]:
    """Show one question, ask it, and send the yes; returns what the daemon said."""
    prompt = asked["prompt"]
    for line in prompt["lines"] if prompt else _facts(asked):
        output.line(line)
    body: dict[str, Any] = {"allowed": True}
    if prompt:
        body["digest"] = prompt["digest"]
    if asked["step"] == "path":
        if path is None:
            raise ParametersInvalid(
                f"{asked['name']}: {asked['source']}", fix="name its directory with --path"
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
    return [_text({**one, "answer": answer}.get(column)) for column in columns]


def _project_of(client: DaemonClient, name: str, project: str, *, needed: bool) -> str | None:
    """Return the project that is meant: the one named, or the only one that uses the plugin."""
    if project:
        return str(find_project(client, project)["id"])
    using = client.get(f"/plugins/{name}").get("projects") or []
    if len(using) == 1:
        return str(using[0])
    if needed:
        raise ParametersInvalid(
            f"{name} is used by {len(using)} projects",
            fix="say which with --project" if using else "load a project that declares it",
        )
    return None


def _assignment(text: str, known: dict[str, Any]) -> tuple[str, Any]:
    """Read KNOB=VALUE, the value by the knob's own type."""
    knob, equals, value = text.partition("=")
    if not equals or knob not in known:
        raise ParametersInvalid(
            f"{text!r} sets no knob of this plugin",
            fix=f"write KNOB=VALUE with one of: {', '.join(known) or 'none'}",
        )
    kind = known[knob]["type"]
    plain = kind in {"range", "int_range", "boolean"} or (kind == "model_alias" and value == "null")
    if not plain:
        return knob, value
    try:
        return knob, json.loads(value)
    except ValueError as error:
        raise ParametersInvalid(f"{value!r} is no value for {knob} ({kind})") from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)
