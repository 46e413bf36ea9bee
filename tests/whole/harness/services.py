"""People's accounts in whole tests: a daemon with providers, people of a front end, bridges.

A `Desk` is a daemon with a project whose agent may use accounts. People reach it through a front
end that the operator's config names; what they ask for is asked by a program in a real cage.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from whole.harness.daemon import Daemon
from whole.harness.project import Project

GUESTS = Path(__file__).parents[2] / "guests"
CALLER = GUESTS / "cage_caller.py"
PYTHON = [sys.executable, "-I"]
FRONT_END = '[auth]\ntrusted_proxies = ["127.0.0.1/32"]\n'
METHODS = (
    "capability.list",
    "capability.invoke",
    "capability.auth.begin",
    "capability.auth.list",
    "capability.auth.complete",
    "capability.auth.complete_callback",
    "capability.auth.poll",
    "capability.auth.cancel",
    "capability.auth.revoke",
)
CAGE = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell", "services"]}
SHELL = {"shell.*": {"enabled": True}, "file.*": {"enabled": True}}
PATIENCE_S = 120.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who talks through the front end; without a user it is the operator."""

    user: str = ""
    chat_type: str = "private"
    chat_id: str = "c-1"

    def in_chat(self, chat_type: str, chat_id: str = "g-1") -> Person:
        """Return the same person in another chat."""
        return Person(self.user, chat_type, chat_id)

    @property
    def headers(self) -> dict[str, str]:
        """What the front end says about them."""
        said = {
            "X-Kaged-User-Id": self.user,
            "X-Kaged-Chat-Type": self.chat_type,
            "X-Kaged-Chat-Id": self.chat_id,
        }
        return {name: value for name, value in said.items() if value}


OPERATOR = Person()


def somebody(chat_type: str = "private") -> Person:
    """Return a person whom nobody has seen yet."""
    number = next(_numbers)
    return Person(f"person-{number}", chat_type, f"chat-{number}")


def operation(name: str, **more: Any) -> dict[str, Any]:
    """Describe an operation as a bridge does."""
    return {"name": name, "description": f"Does {name}.", **more}


def capability(id_: str, *operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Describe a capability as a bridge does; without operations it has an echo."""
    listed = [*operations] or [operation("echo")]
    return {"id": id_, "description": f"Things of {id_}.", "operations": listed, **more}


class Bridge:
    """A bridge of the operator's: its section of `config.toml`, its plan and its log."""

    def __init__(
        self,
        folder: Path,
        name: str,
        plan: Mapping[str, Any] | None = None,
        program: str = "bridge_plan.py",
        **section: Any,
    ) -> None:
        self.name = name
        self.plan_file = folder / f"{name}.plan.json"
        self.log_file = folder / f"{name}.log"
        self.plan(plan or {"definitions": [capability(f"{name}.box")]})
        env = {"BRIDGE_PLAN": str(self.plan_file), "BRIDGE_LOG": str(self.log_file)}
        self.section: dict[str, Any] = {
            "command": [*PYTHON, str(GUESTS / program)],
            **section,
            "env": {**env, **section.get("env", {})},
        }

    def plan(self, plan: Mapping[str, Any]) -> None:
        """Let it say something else from now on."""
        self.plan_file.write_text(json.dumps(plan), encoding="utf-8")

    def toml(self) -> str:
        """Return its section."""
        return provider_toml(self.name, **self.section)

    def log(self, method: str | None = None) -> list[dict[str, Any]]:
        """Return what reached it, oldest first."""
        if not self.log_file.exists():
            return []
        lines = self.log_file.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        return [one for one in found if method in {None, one["request"]["method"]}]

    def calls(self) -> list[dict[str, Any]]:
        """Return what reached it on somebody's behalf: not what it offers."""
        return [one for one in self.log() if one["request"]["method"] != "definitions"]

    def asked(self, method: str | None = None, **params: Any) -> list[dict[str, Any]]:
        """Return the params of the requests of one method that hold these."""
        found = [one["request"]["params"] for one in self.log(method)]
        return [one for one in found if params.items() <= one.items()]


def provider_toml(name: str, **section: Any) -> str:
    """Return a section of `config.toml`."""
    pairs = "".join(f"{key} = {toml(value)}\n" for key, value in section.items())
    return f"[capabilities.providers.{name}]\n{pairs}"


def toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return json.dumps(value)


class Denied(AssertionError):
    """The host refused what the test expected it to do."""


class Desk:
    """A daemon with providers, and what people do through an agent's cage."""

    def __init__(self, daemon: Daemon, root: Path) -> None:
        self.daemon = daemon
        self.project = Project(root, cage=CAGE, tools=SHELL)
        shutil.copy(CALLER, root / "caller.py")
        self._front_end: httpx.Client | None = None

    def open(self) -> Desk:
        """Start the daemon and load the project."""
        self.daemon.start()
        self.daemon.load(self.project)
        return self

    def close(self) -> None:
        """End it for good."""
        self._hang_up()
        self.daemon.close()

    def stop(self, *, kill: bool = False) -> None:
        """End the daemon, kindly or not; its home stays."""
        if kill:
            # The connection is closed after it: a thread that waits for an answer sees the end.
            self.daemon.kill()
            self._hang_up()
        else:
            self._hang_up()
            self.daemon.stop()

    def reopen(self, *, kill: bool = False) -> None:
        """End the daemon and start it again on the same home."""
        self.stop(kill=kill)
        self.open()

    def _hang_up(self) -> None:
        if self._front_end is not None:
            self._front_end.close()
            self._front_end = None

    def providers(self) -> list[dict[str, Any]]:
        """Return what the operator sees of the providers."""
        return list(self.daemon.get("/services/providers")["providers"])

    def provider(self, namespace: str) -> dict[str, Any]:
        """Return what the operator sees of one of them."""
        [found] = [one for one in self.providers() if one["namespace"] == namespace]
        return found

    # -- commands in a cage --------------------------------------------------------------------

    def run(
        self, person: Person, command: str, agent: str = "primary", **params: Any
    ) -> dict[str, Any]:
        """Run a command as an agent that acts for somebody; returns the tool's result."""
        given = {"command": command, **params}
        body = {"agent": agent, "tool": "shell.bash", "params": given}
        path = f"/projects/{self.project.id}/tools/call"
        if not person.user:
            got: dict[str, Any] = self.daemon.post(path, body)["result"]
            return got
        answer = self.front_end.post(f"/api/v1{path}", json=body, headers=person.headers)
        assert answer.is_success, answer.text
        result: dict[str, Any] = answer.json()["result"]
        return result

    @property
    def front_end(self) -> httpx.Client:
        """The front end's connection to the daemon: TCP, with the bearer token."""
        Daemon.spoken += 1
        if self._front_end is None:
            self._front_end = httpx.Client(
                base_url=self.daemon.url,
                headers={"Authorization": f"Bearer {self.daemon.token}"},
                timeout=PATIENCE_S,
                trust_env=False,
            )
        return self._front_end

    def ash(self, person: Person, *words: str) -> tuple[int, str, str]:
        """Run `ash-sb capability …` in a cage; returns exit code, standard output and error."""
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
        command = (
            f"ash-sb capability {quoted} 2>.err; code=$?; printf '\\036'; cat .err; exit $code"
        )
        done = self.run(person, command)
        out, _, err = str(done["stdout"]).partition("\x1e")
        return int(done["exit_code"]), out, err

    # -- the channel ---------------------------------------------------------------------------

    def talk(self, person: Person, *conversations: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Let a program in a cage hold conversations at the same time; returns its answers."""
        name = f"job-{next(_numbers)}.json"
        job = {"conversations": [list(one) for one in conversations]}
        file = self.project.write(name, json.dumps(job))
        done = self.run(person, f"python3 caller.py {name}")
        file.unlink()
        assert done["exit_code"] == 0, done
        return list(json.loads(done["stdout"]))

    def asks(self, person: Person, *steps: Mapping[str, Any]) -> list[Any]:
        """Ask one thing after the other on one connection; returns the answers."""
        [answers] = self.talk(person, steps)
        return list(answers)

    def ask(self, person: Person, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something that has to work; returns the result."""
        [answer] = self.asks(person, step(method, **params))
        return result_of(answer)

    def refusal(self, person: Person, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something that has to be refused; returns the error."""
        [answer] = self.asks(person, step(method, **params))
        return error_of(answer)

    def invoke(self, person: Person, id_: str, operation: str = "echo", **more: Any) -> Any:
        """Run an operation that has to work; returns its output."""
        done = self.ask(person, "invoke", capability=id_, operation=operation, **more)
        return done["output"]

    def code(self, person: Person, id_: str, operation: str = "echo", **more: Any) -> str:
        """Run an operation that has to fail; returns the code."""
        return code_of(
            {"error": self.refusal(person, "invoke", capability=id_, operation=operation, **more)}
        )

    def link(self, person: Person, id_: str, hint: str | None = None) -> str:
        """Link an account as an agent does; returns its name."""
        _, done = self.asks(person, *linking(id_, hint))
        return str(result_of(done)["account_ref"])

    def accounts(self, user: str) -> list[dict[str, Any]]:
        """Return the accounts of somebody, as the operator sees them."""
        return list(self.daemon.get(f"/services/accounts?user_id={user}")["accounts"])

    def audit(self, person: Person, *events: str) -> list[dict[str, Any]]:
        """Return what is on record about somebody, oldest first: the rows' data."""
        rows = [one["data"] for one in self.daemon.audit(*events)]
        return [one for one in rows if one.get("user_id") == person.user]


def step(method: str, **params: Any) -> dict[str, Any]:
    """Return one request: `invoke`, `auth.begin`, `list`, …"""
    return {"method": f"capability.{method}", "params": params}


def invoking(id_: str, operation: str = "echo", **more: Any) -> dict[str, Any]:
    """Return a request to run an operation."""
    return step("invoke", capability=id_, operation=operation, **more)


def linking(id_: str, hint: str | None = None, first: int = 0) -> list[dict[str, Any]]:
    """Return the two requests that link an account; `first` is the place of the first one."""
    named = {} if hint is None else {"account_hint": hint}
    return [
        step("auth.begin", capability=id_, **named),
        step("auth.complete", flow_id={"$": [first, "flow_id"]}, code="agreed"),
    ]


def result_of(answer: Any) -> dict[str, Any]:
    """Return an answer's result; it must have one."""
    if answer is None or "result" not in answer:
        raise Denied(str(answer))
    result: dict[str, Any] = answer["result"]
    return result


def error_of(answer: Any) -> dict[str, Any]:
    """Return an answer's error; it must have one."""
    assert answer is not None
    assert "error" in answer, answer
    error: dict[str, Any] = answer["error"]
    return error


def code_of(answer: Any) -> str:
    """Return the code of a refusal; number, text and data must agree on it."""
    error = error_of(answer)
    code = str(error["data"]["code"])
    assert error["code"] == -32603, error
    assert error["message"].startswith(f"{code}: "), error
    return code


# -- tokens, as their format is published -------------------------------------------------------


def segment(data: bytes) -> str:
    """Write bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsegment(text: str) -> bytes:
    """Read such a text."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def signed(key: bytes, header: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
    """Sign a token of any content."""
    body = ".".join(segment(json.dumps(one).encode()) for one in (header, payload))
    return f"{body}.{segment(hmac.new(key, body.encode(), hashlib.sha256).digest())}"


def read_token(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a token's header and claims, unchecked."""
    head, body, _ = token.split(".")
    return json.loads(unsegment(head)), json.loads(unsegment(body))
