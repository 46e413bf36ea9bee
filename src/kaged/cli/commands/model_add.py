"""`kaged model add`: from a vendor and a key to a model that answers; and taking one away."""

from __future__ import annotations

import getpass
import os
import re
import sys
from typing import Annotated, Any, Final

import typer

from kaged.base import KagedError
from kaged.cli.context import daemon, locations, require_own_daemon
from kaged.cli.exits import Exit
from kaged.cli.model_file import as_written, reload_daemon, sections, write_section
from kaged.cli.model_vendors import OWN_SERVER, VENDORS, Vendor, list_models
from kaged.cli.output import Output, harmless, one_line
from kaged.cli.runner import DaemonClient, command, group

app = group("List your models, add some, and test them.")

DEFAULT: Final = "default"
MAX_SHOWN: Final = 30
MAX_KEY_CHARS: Final = 4000
_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
_MODEL: Final = re.compile(r"[a-z][a-z0-9_-]*:\S{1,250}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

Alias = Annotated[str, typer.Argument(help="The alias, as `kaged model list` shows it.")]
NewAlias = Annotated[
    str | None, typer.Argument(help="The alias that projects name. Default: default, if free.")
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="vendor:name, instead of being asked.")
]
Url = Annotated[
    str | None, typer.Option("--base-url", help="The server, if it is not the vendor's own.")
]
KeyFromEnv = Annotated[
    str | None,
    typer.Option("--key-from-env", help="The variable of the daemon's environment with the key."),
]
KeyStdin = Annotated[bool, typer.Option("--key-stdin", help="Read the key from standard input.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the model even if it does not answer.")]
NoTest = Annotated[bool, typer.Option("--no-test", help="Do not ask it a question.")]


@command(app, "add")
def add(
    output: Output,
    alias: NewAlias = None,
    model: Model = None,
    base_url: Url = None,
    key_from_env: KeyFromEnv = None,
    key_stdin: KeyStdin = False,
    keep: Keep = False,
    no_test: NoTest = False,
) -> None:
    """Add a model: choose a vendor and a model, type the key, and see whether it answers.

    With --model nothing is asked, for scripts.
    """
    require_own_daemon("Run it where the daemon runs.")
    if model is None:
        if key_from_env or key_stdin or not _at_keyboard():
            raise KagedError(
                "There is nobody here to ask which model it is.",
                code="invalid_params",
                fix="Say it: kaged model add ALIAS --model vendor:name --key-from-env VARIABLE",
            )
        added = ask_and_add(output, alias, keep=keep)
        raise typer.Exit(Exit.OK if added else Exit.FINDINGS)
    key: str | None = None
    if key_from_env is not None:
        key = f"${{{_checked(key_from_env, _VARIABLE, 'the name of a variable')}}}"
    elif key_stdin:
        key = as_written(_typed_key(sys.stdin.read(MAX_KEY_CHARS + 2)))
    values = {"model": _checked(model, _MODEL, "vendor:name"), "base_url": base_url, "api_key": key}
    name = alias or _free_alias(model)
    added = _write_and_test(name, values, output, keep=keep, test=not no_test)
    raise typer.Exit(Exit.OK if added else Exit.FINDINGS)


@command(app, "remove", view="Removed [models.{alias}].")
def remove(alias: Alias) -> Any:
    """Remove a model from local.toml, with its key."""
    require_own_daemon("Run it where the daemon runs.")
    _known(alias)
    write_section(alias, None)
    _let_read()
    return {"alias": alias, "file": str(locations().local_toml)}


@command(app, "default", view="The alias default is now {found[model]}.")
def default(alias: Alias) -> Any:
    """Make a model the one that projects get by the alias `default`."""
    require_own_daemon("Run it where the daemon runs.")
    known = sections()
    values = _known(alias)
    before = known.get(DEFAULT)
    others = [one for name, one in known.items() if name != DEFAULT]
    if before is not None and before not in others:
        write_section(_free_alias(str(before.get("model")), besides=DEFAULT), before)
    write_section(DEFAULT, values)
    _let_read()
    return {"alias": DEFAULT, "model": values.get("model")}


def ask_and_add(output: Output, alias: str | None = None, *, keep: bool = False) -> bool:
    """Ask a person at the terminal for a model and add it; returns whether it is there now."""
    vendor = _ask_vendor()
    base_url = _ask_url(vendor)
    key, written = _ask_key(vendor)
    model = f"{vendor.name}:{_ask_model(vendor, base_url, key)}"
    name = alias or _ask_alias(model)
    values = {"model": model, "base_url": base_url, "api_key": written}
    return _write_and_test(name, values, output, keep=keep, test=True)


def offer_model(error: Exception, output: Output) -> bool:
    """Offer to add the model that a run was refused for; returns whether it is there now."""
    from kaged.cli.client import DaemonRefused

    if not isinstance(error, DaemonRefused) or error.code != "model_unknown":
        return False
    alias = str((error.body.get("error") or {}).get("data", {}).get("alias") or "")
    if not _ALIAS.fullmatch(alias) or alias in sections():
        return False
    if output.as_json or not _at_keyboard() or os.environ.get("KAGED_URL"):
        return False
    typer.echo(f"No model has the alias {alias} yet.", err=True)
    if not typer.confirm("Add one now?", default=True, err=True):
        return False
    return ask_and_add(output, alias)


# -- what is asked ---------------------------------------------------------------------------------


def _ask_vendor() -> Vendor:
    listed = [*VENDORS.values(), OWN_SERVER]
    for number, one in enumerate(listed, start=1):
        typer.echo(f"{number:>3}. {one.title}", err=True)
    while True:
        said = typer.prompt("Vendor", default="1", err=True).strip()
        if said.isdecimal() and 1 <= int(said) <= len(listed):
            return listed[int(said) - 1]
        if said in VENDORS:
            return VENDORS[said]
        typer.echo("Type a number of the list.", err=True)


def _ask_url(vendor: Vendor) -> str | None:
    while vendor.needs_url:
        said = typer.prompt("URL of the server", err=True).strip()
        if re.fullmatch(r"https?://\S{1,2000}", said):
            return said
        typer.echo("It begins with http:// or https://.", err=True)
    return vendor.server if vendor.name == "ollama" else None


def _ask_key(vendor: Vendor) -> tuple[str | None, str | None]:
    """Return the key, and how the file writes it."""
    in_variable = os.environ.get(vendor.variable) if vendor.variable else None
    if in_variable and typer.confirm(f"Take the key from {vendor.variable}?", err=True):
        return in_variable, f"${{{vendor.variable}}}"
    if vendor.name == "ollama":
        return None, None
    while True:
        hint = "" if vendor.needs_key else " (empty: none)"
        said = getpass.getpass(f"Key of {vendor.title}{hint}: ", stream=sys.stderr).strip()
        if said:
            key = _typed_key(said)
            return key, as_written(key)
        if not vendor.needs_key:
            return None, None
        typer.echo("This vendor needs a key.", err=True)


def _ask_model(vendor: Vendor, base_url: str | None, key: str | None) -> str:
    models = list_models(vendor, base_url, key)
    for number, one in enumerate(models[:MAX_SHOWN], start=1):
        typer.echo(f"{number:>3}. {one}", err=True)
    if len(models) > MAX_SHOWN:
        typer.echo(f"     … and {len(models) - MAX_SHOWN} more; type a name.", err=True)
    while True:
        said = typer.prompt("Model", err=True).strip()
        if said.isdecimal() and 1 <= int(said) <= min(len(models), MAX_SHOWN):
            return models[int(said) - 1]
        if re.fullmatch(r"[^\s\d]\S{0,250}|\S*[^\s\d]\S{0,250}", said):
            return said
        typer.echo("Type a number of the list, or a name.", err=True)


def _ask_alias(model: str) -> str:
    while True:
        said = str(typer.prompt("Alias", default=_free_alias(model), err=True)).strip()
        if _ALIAS.fullmatch(said):
            return said
        typer.echo("An alias has letters, digits and . _ - only.", err=True)


# -- what is done ----------------------------------------------------------------------------------


def _write_and_test(
    alias: str, values: dict[str, Any], output: Output, *, keep: bool, test: bool
) -> bool:
    """Write a section and ask the model a question; what does not answer is taken back."""
    _checked(alias, _ALIAS, "an alias")
    before = sections().get(alias)
    write_section(alias, {name: one for name, one in values.items() if one is not None})
    path = locations().local_toml
    with daemon() as client:
        reload_daemon(client)
        row: dict[str, Any] = _tested(client, alias) if test else {"ok": True}
        if not row["ok"]:
            _tell_failure(alias, row["error"], output)
            asks = _at_keyboard() and not output.as_json and not keep
            if not keep and not (
                asks and typer.confirm("Keep it anyway?", default=False, err=True)
            ):
                write_section(alias, before)
                reload_daemon(client)
                output.note(f"{path} is as it was before.")
                output.result({"alias": alias, "added": False, "error": row["error"]})
                return False
    output.result({"alias": alias, "added": True, "file": str(path), "test": row})
    if row.get("says"):
        output.line(f"{alias} answers: {one_line(row['says'])}")
    output.line(f"Wrote [models.{alias}] to {path}.")
    return True


def _tested(client: DaemonClient, alias: str) -> dict[str, Any]:
    return dict(client.post("/models/check", {"alias": alias}))


def _tell_failure(alias: str, error: dict[str, Any], output: Output) -> None:
    output.note(f"{alias} does not answer: {error['message']} [{error['code']}]")
    if error["vendor_says"]:
        output.note(f"  the vendor says: {one_line(error['vendor_says'])}")


def _let_read() -> None:
    with daemon() as client:
        reload_daemon(client)


def _known(alias: str) -> dict[str, Any]:
    found = sections().get(alias)
    if found is None:
        raise KagedError(
            f"local.toml has no section [models.{alias}].",
            code="model_unknown",
            fix="`kaged model list` shows the aliases there are.",
        )
    return found


def _free_alias(model: str, besides: str = "") -> str:
    """Return `default` if nothing has that alias, else a name after the model."""
    known = {*sections(), besides}
    if DEFAULT not in known:
        return DEFAULT
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", model.partition(":")[2]).strip("-.") or "model"
    names = [plain[:60], *(f"{plain[:60]}-{number}" for number in range(2, 100))]
    return next(one for one in names if one not in known)


def _typed_key(said: str) -> str:
    key = said.strip()
    if not key or len(key) > MAX_KEY_CHARS or harmless(key) != key or re.search(r"\s", key):
        raise KagedError(
            "The key is empty, too long, or holds blanks.",
            code="invalid_params",
            fix="Copy it once more.",
        )
    return key


def _checked(text: str, shape: re.Pattern[str], means: str) -> str:
    if not shape.fullmatch(text):
        raise KagedError(f"{text!r} is not {means}.", code="invalid_params", fix="See --help.")
    return text


def _at_keyboard() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
