---@meta
-- Drawn by `python -m kaged.lua.reference`.

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

kage = {}
kage.crypto = {}
kage.fs = {}
kage.http = {}
kage.json = {}
kage.session = {}
kage.store = {}
kage.ui = {}

---Asks for powers. True only for what the operator granted to this script; an unknown name raises.
---@param names string[]
---@return table<string, boolean>
function kage.request_capabilities(names) end

---Shows people one line.
---@param message string
---@param level? 'info'|'warning'|'error'
function kage.notify(message, level) end

---Writes to the daemon's log.
---@param level string
---@param message string
function kage.log(level, message) end

---Subscribes to an event; gives the function that ends it.
---@param event string
---@param handler function
---@return fun()
function kage.on(event, handler) end

---Adds a command, `/name` in a chat and `kaged lua run name`.
---@param spec kage.Command
function kage.register_command(spec) end

---Adds a command that may have the name of a built-in one.
---@param spec kage.Command
function kage.override_command(spec) end

---Adds a tool for agents, named after the script: `<script>.<name>`. An agent has it when its `tools:` map says so.
---@param spec kage.Tool
function kage.register_tool(spec) end

---Binds a key, where a front end has keys.
---@param spec string|table
---@param handler function
---@return fun()
function kage.register_keybinding(spec, handler) end

---Draws custom entries of a kind.
---@param kind string
---@param render function|nil
function kage.register_block_renderer(kind, render) end

---Draws a piece of the status line.
---@param spec table
function kage.register_widget(spec) end

---Completes what people type.
---@param spec table
function kage.add_autocomplete_provider(spec) end

---Sees keys first; true consumes one.
---@param handler function
---@return fun()
function kage.on_terminal_input(handler) end

---Shows a text in the status line.
---@param key string
---@param text string
function kage.set_status(key, text) end

---Takes it away.
---@param key string
function kage.clear_status(key) end

---The same as `kage.notify`.
---@param message string
---@param level? string
function kage.ui.notify(message, level) end

---Lets a person choose; nil when dismissed.
---@param title string
---@param items (string|table)[]
---@return any
function kage.ui.select(title, items) end

---Asks yes or no; dismissal is no.
---@param title string
---@param message string
---@return boolean
function kage.ui.confirm(title, message) end

---Asks for a line.
---@param title string
---@param placeholder? string
---@return string|nil
function kage.ui.input(title, placeholder) end

---Asks for a longer text.
---@param title string
---@param prefill? string
---@return string|nil
function kage.ui.editor(title, prefill) end

---Draws lines above the conversation.
---@param render function|nil
function kage.ui.set_header(render) end

---Draws lines below it.
---@param render function|nil
function kage.ui.set_footer(render) end

---Gives the project's sessions, last used first.
---@return kage.Session[]
function kage.session.list() end

---Branches off at an entry, by default the last, and stays.
---@param at? string
function kage.session.fork(at) end

---Writes a custom entry once the script has returned.
---@param kind string
---@param data? table
function kage.session.append_entry(kind, data) end

---Labels an entry; nil takes the label away.
---@param anchor string
---@param label? string
function kage.session.set_label(anchor, label) end

---Gives metadata of every entry of the session, in order; never text. Needs the power `session_write`.
---@return kage.Entry[]
function kage.session.entries() end

---Asks for another session: an id, the beginning of one, or a `value` of `list`. Needs the power `session_write`.
---@param target string
function kage.session.switch(target) end

---Asks for a fork at an entry, by default the last, and goes there. Needs the power `session_write`.
---@param at? string
function kage.session.fork_to(at) end

---Provides models, as `model = "lua:<id>/<model>"` in local.toml. Not for a script that also guards. Needs the power `provider`.
---@param spec kage.Provider
function kage.register_provider(spec) end

---Raises, in `stream`: the first two kinds, and `http` with a status that passes, are tried again. Needs the power `provider`.
---@param kind 'transport'|'rate_limited'|'http'|'auth'|'unknown_model'|'decode'
---@param message string
---@param status? integer
function kage.provider_error(kind, message, status) end

---Reads a file of the workdir.
---@param path string
---@return string
function kage.fs.read(path) end

---Writes a file of the workdir, making folders; never inside `.git`.
---@param path string
---@param content string
function kage.fs.write(path, content) end

---Makes a request, within `[lua] net`.
---@param url string
---@param options? table
---@return kage.Answer
function kage.http.get(url, options) end

---Makes a request with `body` or `json`.
---@param url string
---@param options? table
---@return kage.Answer
function kage.http.post(url, options) end

---Makes a request.
---@param url string
---@param options? table
---@return kage.Answer
function kage.http.delete(url, options) end

---Makes a request and calls `fn` for each server-sent event of the answer; gives `{ status, content_type }`. Needs the power `net`.
---@param url string
---@param options table
---@param fn fun(frame: kage.Frame)
---@return table
function kage.http.post_stream(url, options, fn) end

---Runs a program without a shell, in a cage of its own on the workdir. Needs the power `exec`.
---@param spec kage.Program
---@return kage.Outcome
function kage.exec(spec) end

---Reads a variable of the daemon's environment. Needs the power `env`.
---@param name string
---@return string|nil
function kage.env(name) end

---Gives random bytes, up to 1,048,576. Needs the power `crypto`.
---@param count integer
---@return string
function kage.crypto.random_bytes(count) end

---Gives the digest as 32 bytes. Needs the power `crypto`.
---@param data string
---@return string
function kage.crypto.sha256(data) end

---Gives the digest as 64 bytes. Needs the power `crypto`.
---@param data string
---@return string
function kage.crypto.sha512(data) end

---Gives the code as 32 bytes. Needs the power `crypto`.
---@param key string
---@param data string
---@return string
function kage.crypto.hmac_sha256(key, data) end

---Derives a key of up to 8,160 bytes. Needs the power `crypto`.
---@param ikm string
---@param salt string
---@param info string
---@param length integer
---@return string
function kage.crypto.hkdf_sha256(ikm, salt, info, length) end

---Decrypts, or raises when the tag is wrong. Needs the power `crypto`.
---@param key string
---@param iv string
---@param aad string
---@param ciphertext string
---@param tag string
---@return string
function kage.crypto.aes256gcm_decrypt(key, iv, aad, ciphertext, tag) end

---Signs with a private key in PKCS#8 DER; gives 64 bytes. Needs the power `crypto`.
---@param key string
---@param message string
---@return string
function kage.crypto.ed25519_sign(key, message) end

---Writes bytes as base64. Needs the power `crypto`.
---@param data string
---@return string
function kage.crypto.to_base64(data) end

---Reads base64. Needs the power `crypto`.
---@param text string
---@return string
function kage.crypto.from_base64(text) end

---Writes bytes as hexadecimal digits. Needs the power `crypto`.
---@param data string
---@return string
function kage.crypto.to_hex(data) end

---Reads hexadecimal digits. Needs the power `crypto`.
---@param text string
---@return string
function kage.crypto.from_hex(text) end

---Gives what was kept, private to this script and project.
---@param key string
---@return any
function kage.store.get(key) end

---Keeps a value, also beyond a restart; written when the handler ends.
---@param key string
---@param value any
function kage.store.set(key, value) end

---Forgets it.
---@param key string
function kage.store.delete(key) end

---Gives the names of what is kept.
---@return string[]
function kage.store.keys() end

---Writes JSON.
---@param value any
---@return string
function kage.json.encode(value) end

---Reads JSON.
---@param text string
---@return any
function kage.json.decode(text) end

---Gives `{ cwd, model }`; with `context` also `system_prompt`.
---@return table
function kage.config() end

---Gives `[plugins.config.<name>]` of this script.
---@return table
function kage.plugin_config() end

---Gives what the session's last turn took; nil before there is one.
---@return kage.Usage|nil
function kage.context_usage() end

---Asks for a compaction of the session between two turns; the prompt is added to the instruction of a summary.
---@param prompt? string
function kage.compact(prompt) end

---Queues a message for the session between two turns; where no run is under way it starts one, which acts for nobody. Needs the power `session_write`.
---@param text string
---@param options? kage.SendOptions
function kage.send_message(text, options) end

---Calls a function once, as soon as the running one has returned.
---@param fn function
function kage.schedule(fn) end

---Calls a function once, later; gives the function that stops it.
---@param fn function
---@param ms integer
---@return fun()
function kage.defer(fn, ms) end

---Calls a function every so many milliseconds, 50 at least, until it raises or is stopped.
---@param fn function
---@param ms integer
---@return fun()
function kage.timer(fn, ms) end

---Gives wall time in milliseconds.
---@return integer
function kage.now_ms() end

---Waits, 0 to 500 milliseconds.
---@param ms integer
function kage.sleep_ms(ms) end

---Gives the generation of this table: 2.
---@return integer
function kage.api_version() end

---Gives the daemon's version.
---@return string
function kage.host_version() end

---Raises when `wanted.api` is newer than this host.
---@param wanted table
function kage.requires(wanted) end
