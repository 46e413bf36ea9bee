"""Powers of scripts: what the operator grants and the script asks for, and nothing besides."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, current, exchange
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command, lua_list

DUMP = """
local names = {}
for k, v in pairs(kage) do
  if type(v) == 'table' then
    for j in pairs(v) do names[#names + 1] = k .. '.' .. j end
  else
    names[#names + 1] = k
  end
end
table.sort(names)
return names
"""
BASE = {
    "add_autocomplete_provider", "api_version", "clear_status", "compact", "config",
    "context_usage", "defer",
    "fs.read", "fs.write", "host_version", "http.delete", "http.get", "http.post",
    "json.decode", "json.encode", "log", "notify", "now_ms", "on", "on_terminal_input",
    "override_command", "plugin_config", "register_block_renderer", "register_command",
    "register_keybinding", "register_tool", "register_widget", "request_capabilities", "requires",
    "session.append_entry", "session.fork", "session.list", "session.set_label", "set_status",
    "schedule", "sleep_ms", "store.delete", "store.get", "store.keys", "store.set", "timer",
    "ui.confirm", "ui.editor", "ui.input", "ui.notify", "ui.select", "ui.set_footer",
    "ui.set_header",
}  # fmt: skip
ADDED = {
    "session_write": {"send_message", "session.entries", "session.switch", "session.fork_to"},
    "exec": {"exec"},
}
BOTH = ["session_write", "exec"]
ASK = "local caps = kage.request_capabilities({'session_write', 'exec'})\n"


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose scripts may reach this machine, and which has a variable to read."""
    made = Daemon(
        module_path / "h",
        config='[lua]\nnet = ["127.0.0.1:*"]\n',
        local=model.local_toml(),
        env={"COLOUR": "green"},
    )
    made.start()
    yield made
    made.close()


@whole("LC-GRANT-01", "LC-SESS-10", "LC-EXEC-08")
def test_a_script_without_grants_finds_no_power_and_no_way_out(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    (project.root.parent / "outside.txt").write_text("secret", encoding="utf-8")
    (project.root / "link.txt").symlink_to("../outside.txt")
    session = exchange(project, model, "galah-closed")
    found = scripts.eval(
        """
        local function tries(...) local ok, e = pcall(...) return {ok, tostring(e)} end
        kage.session.fork()
        return {
          exec = type(kage.exec), call = tries(function() return kage.exec({cmd='id'}) end),
          entries = type(kage.session.entries), switch = type(kage.session.switch),
          fork_to = type(kage.session.fork_to), list = #kage.session.list(),
          up = tries(kage.fs.read, '../outside.txt'), abs = tries(kage.fs.read, '/etc/passwd'),
          linked = tries(kage.fs.read, 'link.txt'), put = tries(kage.fs.write, '../made.txt', 'x'),
          io = type(io), execute = type(os.execute), require = type(require),
          load = type(load), package = type(package), dump = type(string.dump),
          dofile = type(dofile), loadfile = type(loadfile), debug = type(debug),
          popen = type(os.popen), remove = type(os.remove), getenv = type(os.getenv),
        }"""
    )
    for name in (
        *("exec", "entries", "switch", "fork_to", "io", "execute", "require", "load", "package"),
        *("dump", "dofile", "loadfile", "debug", "popen", "remove", "getenv"),
    ):
        assert found[name] == "nil", name
    assert found["list"] == 1
    assert found["call"][0] is False
    assert "nil value" in found["call"][1]
    for name in ("up", "abs", "linked", "put"):
        assert found[name][0] is False, name
        assert "secret" not in found[name][1]
    assert not (project.root.parent / "made.txt").exists()
    # The fork was made when the command had returned, and nobody went there.
    assert len(project.get("/sessions")["items"]) == 2
    assert current(project) == session


@whole("LC-GRANT-02", "LC-SAFE-02", "LC-REQ-04")
def test_a_grant_reaches_one_script_and_no_other(scripts: Scripts) -> None:
    ant = (
        ASK
        + """
    local function put(f) pcall(f) end
    put(function() _G.stolen = kage.exec end)
    put(function() string.stolen = kage.exec end)
    put(function() getmetatable('').__index.stolen = kage.exec end)
    put(function() package.loaded.stolen = kage.exec end)
    kage.on('turn_end', function(payload) payload.stolen = kage.exec return payload end)
    kage.on('transform_context', function(list) list[1].stolen = kage.exec return list end)
    put(function() kage.store.set('stolen', kage.exec) end)
    """
    )
    hunt = (
        ASK
        + """
    if caps.exec or caps.session_write or kage.exec then return {'had it'} end
    local seen, found = {}, {}
    local function walk(value, path, depth)
      if depth > 6 or seen[value] then return end
      seen[value] = true
      if type(value) ~= 'table' then return end
      for k, v in pairs(value) do
        local name = tostring(k)
        if name:find('stolen') or name == 'exec' then found[#found+1] = path .. name end
        walk(v, path .. tostring(k) .. '.', depth + 1)
      end
    end
    walk(_G, '', 0)
    walk({getmetatable('')}, '', 0)
    if package or debug or python then found[#found+1] = 'package, debug or python' end
    for _, key in ipairs(kage.store.keys()) do found[#found+1] = key end
    return found"""
    )
    scripts.grant(nobody=["exec"])
    alone = set(scripts.eval(ASK + DUMP, "bee"))
    scripts.grant(ant=BOTH)
    shown = scripts.load(ant=ant, bee=command("eval", hunt))
    assert scripts.again() in ([], {})
    assert shown["ant"]["active"] == ["exec", "session_write"]
    assert (shown["bee"]["granted"], shown["bee"]["active"]) == ([], [])
    assert shown["ant"]["pid"] != shown["bee"]["pid"]
    assert set(scripts.eval(ASK + DUMP, "bee", ant=ant)) == alone == BASE


def test_what_the_host_tells_is_plain_data(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.load(
        plain="""
        seen = {}
        local function look(name, value, path)
          if type(value) == 'table' then
            if getmetatable(value) ~= nil then seen[#seen+1] = 'meta ' .. name .. path end
            for k, v in pairs(value) do look(name, v, path .. '.' .. tostring(k)) end
          elseif type(value) == 'function' or type(value) == 'userdata' then
            seen[#seen+1] = type(value) .. ' ' .. name .. path
          end
        end
        heard = 0
        for _, name in ipairs({'turn_end', 'message_end', 'agent_start', 'user'}) do
          kage.on(name, function(payload) heard = heard + 1 look(name, payload, '') end)
        end
        """
        + command(
            "eval",
            """
            return {seen = seen, heard = heard, rawset = type(rawset)}""",
        )
    )
    exchange(project, model, "koala-plain")
    wait_for(lambda: scripts.again()["heard"] >= 4)
    found = scripts.again()
    assert found["seen"] in ([], {})
    assert found["rawset"] == "nil"


@whole("LC-GRANT-03", "LC-GRANT-06", "LC-REQ-03")
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_a_power_needs_both_sides(scripts: Scripts, granted: bool, asked: bool) -> None:
    scripts.grant(**({"probe": ["exec"]} if granted else {}))
    ask = "kage.request_capabilities({'exec'})\n" if asked else ""
    script = f"before = type(kage.exec)\n{ask}at_load = type(kage.exec)\n"
    shown = scripts.load(
        probe=script + command("eval", "return {before, at_load, type(kage.exec)}")
    )
    has = "function" if granted and asked else "nil"
    for _ in range(2):
        assert scripts.again() == ["nil", has, has]
    assert shown["probe"]["granted"] == (["exec"] if granted else [])
    assert shown["probe"]["active"] == (["exec"] if granted and asked else [])


@whole("LC-GRANT-04", "LC-GRANT-05")
def test_the_stem_of_the_file_is_the_name_of_the_grant(scripts: Scripts) -> None:
    scripts.grant(rewind=BOTH)
    code = "return kage.request_capabilities({'exec', 'session_write'})"
    no, yes = dict.fromkeys(BOTH, False), dict.fromkeys(BOTH, True)
    assert scripts.eval(code, "undo") == no
    (scripts.folder / "undo.lua").rename(scripts.folder / "rewind.lua")
    shown = scripts.reload()
    assert scripts.again() == yes
    assert sorted(shown["rewind"]["granted"]) == ["exec", "session_write"]
    assert scripts.eval(code, "Rewind") == no
    assert scripts.eval(code, "rewind2") == no


@whole("LC-GRANT-07", "LC-SAFE-01")
def test_the_two_powers_add_exactly_their_functions(scripts: Scripts) -> None:
    scripts.grant()
    assert set(scripts.eval(DUMP)) == BASE
    scripts.grant(other=BOTH)
    assert set(scripts.eval(DUMP)) == BASE
    scripts.grant(probe=BOTH)
    assert set(scripts.eval(DUMP)) == BASE, "granted and not asked for"
    assert set(scripts.eval(ASK + DUMP)) == BASE | ADDED["exec"] | ADDED["session_write"]
    scripts.grant(other=BOTH)
    assert set(scripts.eval(ASK + DUMP)) == BASE, "asked for and not granted"


@whole("LC-GRANT-08", "LC-REQ-01", "LC-REQ-02", "LC-REQ-07")
@pytest.mark.parametrize("one", [*BOTH, None])
def test_a_grant_covers_its_name_only_and_the_answer_is_true(
    scripts: Scripts, project: Project, one: str | None
) -> None:
    mine = {} if one is None else {"probe": [one]}
    scripts.grant(other=BOTH, **mine)
    project.write("x.txt", "still")
    begin(project)
    found = scripts.eval(
        ASK + "kage.notify('still here') kage.fs.write('y.txt', 'made')"
        " return {caps, kage.fs.read('x.txt'), #kage.session.list(), (function()" + DUMP + "end)()}"
    )
    assert found[0] == {name: name == one for name in BOTH}
    # What was asked for is answered and on record, each name once for each load.
    granted = [each["capability"] for each in scripts.audit("lua.capability.granted")]
    refused = [
        (each["capability"], each["reason"]) for each in scripts.audit("lua.capability.refused")
    ]
    assert granted == ([] if one is None else [one])
    assert sorted(refused) == sorted((name, "not granted") for name in BOTH if name != one)
    alone = scripts.eval("return kage.request_capabilities({'exec'})")
    assert alone == {"exec": one == "exec"}, "no name that was not asked for"
    for wrong in ("'exec'", "{'everything'}", "{1}"):
        ok, _ = scripts.eval(f"return {{pcall(kage.request_capabilities, {wrong})}}")
        assert ok is False, wrong
    assert found[1:3] == ["still", 1]
    assert set(found[3]) == BASE | (set() if one is None else ADDED[one])
    assert project.read("y.txt") == "made"
    assert "still here" in scripts.notices()


class Page(http.server.BaseHTTPRequestHandler):
    """Answers a GET once the test has seen that the script waits."""

    gate = threading.Event()
    asked = threading.Event()

    def do_GET(self) -> None:
        """Answer."""
        self.asked.set()
        self.gate.wait(30)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"from the net")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Swallow the request log."""


@pytest.fixture
def page() -> Iterator[str]:
    """Yield the address of a page that takes its time."""
    Page.gate.clear()
    Page.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x"
        Page.gate.set()
        server.shutdown()


@whole("LC-GRANT-09")
def test_an_ungranted_script_has_every_base_function(
    scripts: Scripts, project: Project, model: ModelServer, page: str
) -> None:
    scripts.grant()
    scripts.load(
        base="""
        turns, switches = 0, 0
        asked = kage.request_capabilities({})
        kage.notify('loaded')
        kage.on('turn_end', function() turns = turns + 1 end)
        kage.on('session_before_switch', function() switches = switches + 1 end)
        """
        + command(
            "eval",
            f"""
            kage.fs.write('made/by.txt', 'me')
            local web = kage.http.get('{page}')
            kage.session.fork()
            return {{turns = turns, switches = switches, text = kage.fs.read('made/by.txt'),
              list = #kage.session.list(), body = web.body, status = web.status}}""",
        )
    )
    second = exchange(project, model, "potoroo-base")
    first = begin(project, current=False)
    project.post(f"/sessions/{first}/switch")
    project.post(f"/sessions/{second}/switch")
    found: dict[str, Any] = {}
    worker = threading.Thread(target=lambda: found.update(scripts.again()))
    worker.start()
    assert Page.asked.wait(30)
    assert worker.is_alive(), "the script waits for the answer"
    assert project.get("/sessions")["items"], "and the daemon goes on"
    Page.gate.set()
    worker.join(30)
    assert found == {
        "turns": 1,
        "switches": 2,
        "text": "me",
        "list": 2,
        "body": "from the net",
        "status": 200,
    }
    assert project.read("made/by.txt") == "me"
    assert len(project.get("/sessions")["items"]) == 3
    assert "loaded" in scripts.notices()


@whole("LC-REQ-05", "LC-SAFE-05")
def test_a_misspelt_power_is_loud_and_others_load(scripts: Scripts) -> None:
    shown = scripts.load(
        bad="kage.request_capabilities({'exec', 'sesion_write'})",
        good=command(
            "eval",
            "local ok, e = pcall(kage.request_capabilities, {'sesion_write'}) return {ok, e}",
        ),
    )
    assert shown["bad"]["state"] == "failed"
    assert "sesion_write" in shown["bad"]["error"]
    assert shown["good"]["state"] == "running"
    (notice,) = [one for one in scripts.notices() if "sesion_write" in one]
    assert "bad.lua" in notice
    ok, said = scripts.again()
    assert ok is False
    assert "'sesion_write'" in said
    assert scripts.daemon.get("/status")["pid"] == scripts.daemon.pid, "the daemon goes on"


@whole("LC-REQ-06")
def test_a_script_adapts_to_the_answer(scripts: Scripts) -> None:
    example = (
        ASK
        + "if not caps.session_write then\n  kage.notify('needs session_write')\n  return\nend\n"
        "parts = {'words'}\nif caps.exec then parts[#parts+1] = 'files' end\n"
        + command("eval", "return parts")
    )
    scripts.grant(part=["exec"])
    shown = scripts.load(part=example, other=command("other", "return 1"))
    assert (shown["part"]["state"], shown["part"]["commands"]) == ("running", [])
    assert scripts.notices().count("needs session_write") == 1
    assert scripts.value("other") == {"value": 1}
    scripts.grant(part=["session_write"])
    scripts.reload()
    assert scripts.again() == ["words"]
    scripts.grant(part=BOTH)
    scripts.reload()
    assert scripts.again() == ["words", "files"]
    assert scripts.notices().count("needs session_write") == 1


@whole("LC-AMB-01", "LC-AMB-02")
@pytest.mark.parametrize(
    ("text", "powers", "words"),
    [
        ('rewind = ["exce"]\nother = ["exec"]', [], ["rewind", "exce", "session_write", "exec"]),
        ('rewind = "exec"\nother = ["exec"]', [], ["rewind", "list"]),
        ('rewind = [1]\nother = ["exec"]', [], ["rewind"]),
        ('absent = ["exec"]\nrewind = ["exec", "exec"]\nother = ["exec"]', ["exec"], []),
    ],
    ids=["unknown", "no list", "no texts", "absent and twice"],
)
def test_a_wrong_grant_is_loud_and_grants_nothing_to_anybody(
    own: Callable[..., Daemon], tmp_path: Path, text: str, powers: list[str], words: list[str]
) -> None:
    daemon = own(config=f"[plugins.capabilities]\n{text}\n")
    (daemon.home / "lua").mkdir()
    for name in ("rewind", "other"):
        source = f"caps_{name} = kage.request_capabilities({{'exec', 'session_write'}})"
        (daemon.home / "lua" / f"{name}.lua").write_text(source, encoding="utf-8")
    daemon.start()
    project = daemon.load(Project(tmp_path / "work"))
    shown = project.get("/lua")
    for script in shown["scripts"]:
        assert script["state"] == "running", script
        assert script["active"] == script["granted"] == powers
    problems = " ".join(shown["problems"])
    assert bool(problems) is bool(words)
    warnings = " ".join(one for one in daemon.get("/status")["warnings"] if "capabilities" in one)
    for word in words:
        assert word in problems, problems
        assert word in warnings, warnings


@whole("LC-AMB-01", "LC-AMB-16")
def test_grants_are_read_at_load_and_a_file_that_cannot_be_read_changes_nothing(
    scripts: Scripts,
) -> None:
    scripts.grant(probe=["exec"])
    code = "kage.request_capabilities({'exec'}) return type(kage.exec)"
    assert scripts.eval(code) == "function"
    scripts.grant()
    assert scripts.again() == "function", "until it is loaded anew"
    assert scripts.reload()["probe"]["active"] == []
    assert scripts.again() == "nil"
    scripts.daemon.write("config.toml", "[nonsense")
    refused = scripts.daemon.error("POST", f"/projects/{scripts.project.id}/lua/reload")
    assert refused["code"] == "config_invalid"
    assert scripts.again() == "nil"


@whole("LC-AMB-04")
def test_asking_later_gives_the_same_answer_and_adds_up(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(late=BOTH)
    scripts.load(
        late="""
        first = kage.request_capabilities({'exec'})
        at_load = {type(kage.exec), type(kage.session.entries)}
        kage.on('turn_end', function()
          again = kage.request_capabilities({'session_write', 'exec', 'crypto'})
          once_more = kage.request_capabilities({'exec'})
        end)
        """
        + command(
            "eval",
            "return {first, at_load, again, once_more, type(kage.exec),"
            " type(kage.session.entries)}",
        ),
        mute=command("mute", "return {type(kage.exec), type(kage.session.entries)}"),
    )
    exchange(project, model, "glider-late")
    found = wait_for(lambda: value if len(value := scripts.again()) == 6 and value[3] else None)
    assert found == [
        {"exec": True},
        ["function", "nil"],
        {"session_write": True, "exec": True, "crypto": False},
        {"exec": True},
        "function",
        "function",
    ]
    assert scripts.value("mute") == {"value": ["nil", "nil"]}


@whole("LC-AMB-19")
def test_every_newer_name_is_known_and_never_promised_in_vain(
    scripts: Scripts, project: Project
) -> None:
    names = ["context", "env", "net", "fs_write", "provider", "crypto"]
    code = f"local caps = kage.request_capabilities({lua_list(names)})\n"
    scripts.grant()
    assert scripts.eval(code + "kage.fs.write('base.txt', 'x') return caps") == dict.fromkeys(
        names, False
    )
    assert project.read("base.txt") == "x", "base functions are not taken away"
    scripts.grant(probe=names)
    session = begin(project, system_prompt="You help a lot.")
    assert current(project) == session
    found = scripts.eval(
        code + "kage.fs.write('w.txt', 'w')\n"
        "return {caps, kage.env('COLOUR'), kage.env('NONE') == nil, kage.config().system_prompt}"
    )
    assert found[0] == dict.fromkeys(names, True)
    assert found[1:] == ["green", True, "You help a lot."]
