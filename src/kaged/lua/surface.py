"""`SURFACE`: every function of the `kage` table, for the reference and for editors."""

# ruff: noqa: E501 - a table with one row per function reads best unbroken
from __future__ import annotations

from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.lua_powers import LuaPower


@dataclass(frozen=True, slots=True)
class Function:
    """One function as scripts see it. `params` are names with Lua types; `power` is its price."""

    name: str
    params: tuple[tuple[str, str], ...]
    returns: str
    doc: str
    power: LuaPower | None = None


def _f(name: str, params: str, returns: str, doc: str, power: LuaPower | None = None) -> Function:
    pairs = [one.split(":", 1) for one in params.split("; ")] if params else []
    return Function(name, tuple((a.strip(), b.strip()) for a, b in pairs), returns, doc, power)


SURFACE: Final = (
    _f("request_capabilities", "names: string[]", "table<string, boolean>", "Asks for powers. True only for what the operator granted to this script; an unknown name raises."),
    _f("notify", "message: string; level?: 'info'|'warning'|'error'", "", "Shows people one line."),
    _f("log", "level: string; message: string", "", "Writes to the daemon's log."),
    _f("on", "event: string; handler: function", "fun()", "Subscribes to an event; gives the function that ends it."),
    _f("register_command", "spec: kage.Command", "", "Adds a command, `/name` in a chat and `kaged lua run name`."),
    _f("override_command", "spec: kage.Command", "", "Adds a command that may have the name of a built-in one."),
    _f("register_tool", "spec: kage.Tool", "", "Adds a tool for agents, named after the script: `<script>.<name>`. An agent has it when its `tools:` map says so."),
    _f("register_keybinding", "spec: string|table; handler: function", "fun()", "Binds a key, where a front end has keys."),
    _f("register_block_renderer", "kind: string; render: function|nil", "", "Draws custom entries of a kind."),
    _f("register_widget", "spec: table", "", "Draws a piece of the status line."),
    _f("add_autocomplete_provider", "spec: table", "", "Completes what people type."),
    _f("on_terminal_input", "handler: function", "fun()", "Sees keys first; true consumes one."),
    _f("set_status", "key: string; text: string", "", "Shows a text in the status line."),
    _f("clear_status", "key: string", "", "Takes it away."),
    _f("ui.notify", "message: string; level?: string", "", "The same as `kage.notify`."),
    _f("ui.select", "title: string; items: (string|table)[]", "any", "Lets a person choose; nil when dismissed."),
    _f("ui.confirm", "title: string; message: string", "boolean", "Asks yes or no; dismissal is no."),
    _f("ui.input", "title: string; placeholder?: string", "string|nil", "Asks for a line."),
    _f("ui.editor", "title: string; prefill?: string", "string|nil", "Asks for a longer text."),
    _f("ui.set_header", "render: function|nil", "", "Draws lines above the conversation."),
    _f("ui.set_footer", "render: function|nil", "", "Draws lines below it."),
    _f("session.list", "", "kage.Session[]", "Gives the project's sessions, last used first."),
    _f("session.fork", "at?: string", "", "Branches off at an entry, by default the last, and stays."),
    _f("session.append_entry", "kind: string; data?: table", "", "Writes a custom entry once the script has returned."),
    _f("session.set_label", "anchor: string; label?: string", "", "Labels an entry; nil takes the label away."),
    _f("session.entries", "", "kage.Entry[]", "Gives metadata of every entry of the session, in order; never text.", LuaPower.SESSION_WRITE),
    _f("session.switch", "target: string", "", "Asks for another session: an id, the beginning of one, or a `value` of `list`.", LuaPower.SESSION_WRITE),
    _f("session.fork_to", "at?: string", "", "Asks for a fork at an entry, by default the last, and goes there.", LuaPower.SESSION_WRITE),
    _f("register_provider", "spec: kage.Provider", "", 'Provides models, as `model = "lua:<id>/<model>"` in local.toml. Not for a script that also guards.', LuaPower.PROVIDER),
    _f("provider_error", "kind: 'transport'|'rate_limited'|'http'|'auth'|'unknown_model'|'decode'; message: string; status?: integer", "", "Raises, in `stream`: the first two kinds, and `http` with a status that passes, are tried again.", LuaPower.PROVIDER),
    _f("fs.read", "path: string", "string", "Reads a file of the workdir."),
    _f("fs.write", "path: string; content: string", "", "Writes a file of the workdir, making folders; never inside `.git`."),
    _f("http.get", "url: string; options?: table", "kage.Answer", "Makes a request, within `[lua] net`."),
    _f("http.post", "url: string; options?: table", "kage.Answer", "Makes a request with `body` or `json`."),
    _f("http.delete", "url: string; options?: table", "kage.Answer", "Makes a request."),
    _f("http.post_stream", "url: string; options: table; fn: fun(frame: kage.Frame)", "table", "Makes a request and calls `fn` for each server-sent event of the answer; gives `{ status, content_type }`.", LuaPower.NET),
    _f("exec", "spec: kage.Program", "kage.Outcome", "Runs a program without a shell, in a cage of its own on the workdir.", LuaPower.EXEC),
    _f("env", "name: string", "string|nil", "Reads a variable of the daemon's environment.", LuaPower.ENV),
    *(
        _f(f"crypto.{name}", params, "string", doc, LuaPower.CRYPTO)
        for name, params, doc in (
            ("random_bytes", "count: integer", "Gives random bytes, up to 1,048,576."),
            ("sha256", "data: string", "Gives the digest as 32 bytes."),
            ("sha512", "data: string", "Gives the digest as 64 bytes."),
            ("hmac_sha256", "key: string; data: string", "Gives the code as 32 bytes."),
            ("hkdf_sha256", "ikm: string; salt: string; info: string; length: integer", "Derives a key of up to 8,160 bytes."),
            ("aes256gcm_decrypt", "key: string; iv: string; aad: string; ciphertext: string; tag: string", "Decrypts, or raises when the tag is wrong."),
            ("ed25519_sign", "key: string; message: string", "Signs with a private key in PKCS#8 DER; gives 64 bytes."),
            ("to_base64", "data: string", "Writes bytes as base64."),
            ("from_base64", "text: string", "Reads base64."),
            ("to_hex", "data: string", "Writes bytes as hexadecimal digits."),
            ("from_hex", "text: string", "Reads hexadecimal digits."),
        )
    ),
    _f("store.get", "key: string", "any", "Gives what was kept, private to this script and project."),
    _f("store.set", "key: string; value: any", "", "Keeps a value, also beyond a restart; written when the handler ends."),
    _f("store.delete", "key: string", "", "Forgets it."),
    _f("store.keys", "", "string[]", "Gives the names of what is kept."),
    _f("json.encode", "value: any", "string", "Writes JSON."),
    _f("json.decode", "text: string", "any", "Reads JSON."),
    _f("config", "", "table", "Gives `{ cwd, model }`; with `context` also `system_prompt`."),
    _f("plugin_config", "", "table", "Gives `[plugins.config.<name>]` of this script."),
    _f("context_usage", "", "kage.Usage|nil", "Gives what the session's last turn took; nil before there is one."),
    _f("compact", "prompt?: string", "", "Asks for a compaction of the session between two turns; the prompt is added to the instruction of a summary."),
    _f("send_message", "text: string; options?: kage.SendOptions", "", "Queues a message for the session between two turns; where no run is under way it starts one, which acts for nobody.", LuaPower.SESSION_WRITE),
    _f("schedule", "fn: function", "", "Calls a function once, as soon as the running one has returned."),
    _f("defer", "fn: function; ms: integer", "fun()", "Calls a function once, later; gives the function that stops it."),
    _f("timer", "fn: function; ms: integer", "fun()", "Calls a function every so many milliseconds, 50 at least, until it raises or is stopped."),
    _f("now_ms", "", "integer", "Gives wall time in milliseconds."),
    _f("sleep_ms", "ms: integer", "", "Waits, 0 to 500 milliseconds."),
    _f("api_version", "", "integer", "Gives the generation of this table: 2."),
    _f("host_version", "", "string", "Gives the daemon's version."),
    _f("requires", "wanted: table", "", "Raises when `wanted.api` is newer than this host."),
)  # fmt: skip
"""In the order of the reference."""

TYPES: Final = """\
---@class kage.Session
---@field id string
---@field value string  what `switch` takes; no path of a file
---@field current? boolean

---@class kage.Entry
---@field id string  ids sort in order of creation
---@field kind 'header'|'message'|'thinking_level_change'|'model_change'|'compaction'|'label'|'title'|'custom'
---@field role? 'user'|'assistant'|'tool_result'|'system'
---@field ts string  RFC 3339

---@class kage.Program
---@field cmd string
---@field args? string[]
---@field cwd? string  below the workdir
---@field timeout_secs? number  30 unless said otherwise, at least 1

---@class kage.Outcome
---@field code integer  -1 when the host ended it
---@field stdout string
---@field stderr string
---@field timed_out boolean
---@field truncated boolean

---@class kage.Answer
---@field status integer
---@field body string
---@field content_type? string
---@field truncated boolean

---@class kage.Frame
---@field event string  `message` unless the server says otherwise
---@field data string  lines are joined with line ends

---@class kage.Usage
---@field model string  the alias
---@field input_tokens integer
---@field output_tokens integer
---@field context_window integer

---@class kage.SendOptions
---@field trigger_turn? boolean  false: wait for the next run; true unless said otherwise
---@field deliver_as? 'user'

---@class kage.Tool
---@field name string
---@field description string
---@field schema table  JSON Schema of the input, an object
---@field risk? 'read'|'write'|'exec'|'network'  'read' unless said otherwise; `network` marks results as untrusted
---@field execute fun(input: table): string|{ text: string, is_error?: boolean, structured?: table }

---@class kage.Provider
---@field id string  letters, digits, `.`, `_` and `-`
---@field models? { id: string, context?: integer }[]  any name without it; `context` is the window in tokens
---@field stream fun(request: kage.ModelRequest, emit: fun(event: kage.ModelEvent)): nil|table|function

---@class kage.ModelRequest
---@field model string
---@field system string
---@field messages { role: string, content: table[] }[]
---@field tools { name: string, description: string, input_schema: table }[]
---@field settings table

---@class kage.ModelEvent
---@field type 'message_start'|'text_delta'|'thinking_delta'|'tool_call_start'|'tool_call_delta'|'tool_call_end'|'message_end'
---@field delta? string
---@field id? string  of a tool call
---@field name? string
---@field input? table
---@field stop_reason? 'end_turn'|'tool_use'|'max_tokens'|'content_filter'
---@field usage? { input: integer, output: integer, cache_read?: integer }

---@class kage.Command
---@field name string
---@field description string
---@field handler fun(raw: string, ctx: nil, args: table): string|table|nil
---@field aliases? string[]
---@field args? table[]
"""
