"""`kaged plugin`: install, enable, look at, call and check plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.cli.commands.plugin_consent import (
    Name,
    ParametersInvalid,
    Yes,
    register_consents,
    register_knobs,
    require_consent,
)
from kaged.cli.context import AsJson, command, daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(
        help="Install, enable, look at, call and check plugins.", no_args_is_help=True
    )
    _register_store(app)
    _register_life(app)
    register_consents(app)
    register_knobs(app)
    _register_author(app)
    return app


def _register_store(app: typer.Typer) -> None:
    @command(app, "list")
    def list_plugins(
        verbose: Annotated[
            bool, typer.Option("--verbose", "-v", help="Also homepage, capabilities and grants.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """List the installed plugins."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get("/plugins")["items"]
        output.result(found)
        columns = ["name", "version", "state", "description"]
        if verbose:
            columns += ["homepage", "capabilities", "operator_grants"]
        output.table(columns, [[_cell(one.get(column)) for column in columns] for one in found])

    @command(app, "install")
    def install(
        path: Annotated[Path, typer.Argument(help="The plugin's directory.")],
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        """Install or upgrade a plugin after showing what it may do."""
        output = Output(as_json=as_json)
        with daemon() as client:
            place = str(path.absolute())
            shown = client.post("/plugins/preview", {"path": place})
            for line in shown["lines"]:
                output.line(line)
            require_consent(shown["question"], output, yes=yes)
            done = client.post("/plugins", {"path": place, "digest": shown["digest"]})
        output.result(done)
        for line in done["lines"]:
            output.line(line)

    @command(app, "export")
    def export(
        name: Name,
        path: Annotated[Path, typer.Argument(help="The file to write; must not exist yet.")],
        as_json: AsJson = False,
    ) -> None:
        """Write a plugin's tables into a file of SQL, for instance before uninstalling it."""
        output = Output(as_json=as_json)
        with daemon() as client:
            done = client.post(f"/plugins/{name}/export", {"path": str(path.absolute())})
        output.result(done)
        output.line(f"✓ {done['rows']} rows of {len(done['tables'])} tables → {done['path']}")

    app.command("upgrade", help="The same as `install`: another version of it upgrades.")(install)

    @command(app, "uninstall")
    def uninstall(
        name: Name,
        force: Annotated[bool, typer.Option("--force", help="Even while sessions use it.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Remove a plugin with its files, tables and entries."""
        output = Output(as_json=as_json)
        with daemon() as client:
            done = client.delete(f"/plugins/{name}?force={'true' if force else 'false'}")
        output.result(done)
        for line in done["lines"]:
            output.line(line)


def _register_life(app: typer.Typer) -> None:
    for verb, words in (
        ("enable", "Enable a plugin and start it; resets its failure counter."),
        ("disable", "Stop a plugin and keep it from starting."),
        ("restart", "Stop a plugin and start it again."),
        ("reload", "Switch a running plugin to its changed files; a failure keeps the old ones."),
    ):
        _register_verb(app, verb, words)

    @command(app, "info")
    def info(name: Name, as_json: AsJson = False) -> None:
        """Show everything about one plugin."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get(f"/plugins/{name}")
        output.result(found)
        output.fields({key: _cell(value) for key, value in found.items() if key != "metrics"})
        output.fields(_counters(found.get("metrics") or {}))

    @command(app, "logs")
    def logs(name: Name, as_json: AsJson = False) -> None:
        """Show the last lines that a plugin wrote to its standard error."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get(f"/plugins/{name}/logs")
        output.result(found)
        for line in found["lines"]:
            output.line(line)

    @command(app, "call")
    def call(
        name: Name,
        method: Annotated[str, typer.Argument(help="A method that the plugin declares.")],
        params: Annotated[str, typer.Argument(help="Its parameters, as a JSON object.")] = "{}",
        as_json: AsJson = False,
    ) -> None:
        """Call a method of a plugin and print its result as JSON."""
        output = Output(as_json=as_json)
        with daemon() as client:
            answer = client.post(f"/plugins/{name}/call/{method}", _parameters(params))
        output.raw(json.dumps(answer["result"], indent=2))


def _register_verb(app: typer.Typer, verb: str, words: str) -> None:
    def act(name: Name, as_json: AsJson = False) -> None:
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.post(f"/plugins/{name}/{verb}")
        output.result(found)
        output.line(f"{name} is {found['state']}.")
        if found.get("note"):
            output.note(found["note"])
        if verb != "disable" and found["state"] == "failed":
            raise typer.Exit(Exit.ERROR)

    act.__doc__ = words
    command(app, verb)(act)


def _register_author(app: typer.Typer) -> None:
    @command(app, "check")
    def check(
        path: Annotated[Path, typer.Argument(help="The plugin's directory.")],
        dry: Annotated[
            bool, typer.Option("--dry", help="Read the files only; start nothing.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Check a plugin's files and shake hands with it in a cage; exit code 6 on errors."""
        from kaged.cli.plugin_check import check_directory

        output = Output(as_json=as_json)
        report = check_directory(path, handshake=not dry)
        output.result(report.as_json())
        for line in report.lines():
            output.line(line)
        if not report.ok:
            raise typer.Exit(Exit.INVALID)

    @command(app, "new")
    def new(
        directory: Annotated[Path, typer.Argument(help="Where to put it; must not exist yet.")],
        name: Annotated[str, typer.Option("--name", help="Left out: the directory's name.")] = "",
        lang: Annotated[str, typer.Option("--lang", help="python, node or bash.")] = "python",
        as_json: AsJson = False,
    ) -> None:
        """Write a small working plugin to start from."""
        from kaged.plugins.scaffold import Language, new_plugin

        output = Output(as_json=as_json)
        try:
            language = Language(lang)
        except ValueError:
            known = ", ".join(one.value for one in Language)
            raise ParametersInvalid(f"no template for {lang}", fix=f"one of {known}") from None
        made = new_plugin(directory, name or directory.absolute().name, language)
        files = [str(path) for path in made.files]
        output.result({"directory": str(made.directory), "files": files})
        for path in files:
            output.line(f"created  {path}")
        output.note(f"Next: `kaged plugin check {directory}`.")


def _parameters(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ParametersInvalid(f"the parameters are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ParametersInvalid("the parameters must be a JSON object", fix="for example '{}'")
    return found


def _counters(metrics: dict[str, Any]) -> dict[str, str]:
    """Return a plugin's counters in one line each."""
    found = {
        name: _cell(metrics[name])
        for name in ("calls", "hooks", "hook_timeouts", "restarts", "notifications_dropped")
        if name in metrics
    }
    errors = metrics.get("errors") or {}
    found["errors"] = ", ".join(f"{code}: {count}" for code, count in errors.items()) or "0"
    if metrics.get("calls"):
        found["mean_ms"] = f"{metrics['latency_sum_ms'] / metrics['calls']:.3f}"
    return found if metrics else {}


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)
