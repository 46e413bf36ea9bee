-- The inside of a script's worker: JSON, the sandbox, and the `kage` table.
--
-- Runs once, before any line of a script. What it gets from Python (`...`) are six functions that
-- take and give strings and numbers only and never raise; they stay upvalues of this chunk, which a
-- script cannot reach: it has no `debug`, and no Python object ever lies in a table of its own.
--
-- What a script can do to the outside is decided by the host, not here. This is the fence, the
-- cage around the process is the wall.

local send, receive, now_ms, encode64, decode64, digest = ...

local type, next, rawget, rawset, rawequal, rawlen = type, next, rawget, rawset, rawequal, rawlen
local setmetatable, getmetatable, pcall, error, select = setmetatable, getmetatable, pcall, error, select
local tostring, tonumber, load, assert, pairs, ipairs, print_here = tostring, tonumber, load, assert, pairs, ipairs, print
local collect = collectgarbage
local byte, char, find, format, gsub, match, sub, rep =
  string.byte, string.char, string.find, string.format, string.gsub, string.match, string.sub, string.rep
local lower = string.lower
local concat, pack, unpack, remove, sort =
  table.concat, table.pack, table.unpack, table.remove, table.sort
local math_type, huge = math.type, math.huge
local utf8_len, utf8_char = utf8.len, utf8.char
local sethook = debug.sethook
local co_create, co_resume, co_status, co_close, co_running, co_yield, co_isyieldable =
  coroutine.create, coroutine.resume, coroutine.status, coroutine.close, coroutine.running,
  coroutine.yield, coroutine.isyieldable

local MAX_DEPTH = 64
local MAX_LINE = 4 * 1024 * 1024 - 4096
local MAX_WEIGHT = 45000
local RAW = "\0b64"          -- how bytes that are no UTF-8 travel: { "\0b64": "..." }
local CHECK = 10000          -- instructions between two looks at the budget
local BUDGET_SPENT = "script exceeded its CPU budget (runaway loop?)"

---------------------------------------------------------------------------------------------------
-- JSON. Tables are read raw everywhere: encoding runs no line of a script.

local came_as_list = setmetatable({}, { __mode = "k" })

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }
local function escape(c)
  return ESCAPES[c] or format("\\u%04x", byte(c))
end

local weight = 0        -- how many values the host will count in what is being written

local function put_string(out, s)
  if utf8_len(s) then
    local text = gsub(s, '[%c"\\]', escape)
    if #text < 16384 or #text * 3 < #s * 4 then
      out[#out + 1] = '"' .. text .. '"'
      weight = weight + (#text - #s) // 16
      return
    end
  end
  out[#out + 1] = '{"\\u0000b64":"' .. encode64(s) .. '"}'
end

local function put_number(out, n)
  if math_type(n) == "integer" then
    out[#out + 1] = format("%d", n)
  elseif n ~= n or n == huge or n == -huge then
    out[#out + 1] = "null"
  else
    local text = format("%.17g", n)
    local short = format("%.15g", n)
    if tonumber(short) == n then text = short end
    if not find(text, "[.eEn]") then text = text .. ".0" end
    out[#out + 1] = text
    weight = weight + 1
  end
end

local put

local function put_table(out, t, depth)
  if depth > MAX_DEPTH then error("a value is nested too deeply", 0) end
  weight = weight + 1
  local n = rawlen(t)
  local dense = n > 0
  for i = 1, n do
    if rawget(t, i) == nil then dense = false break end
  end
  if dense or (next(t) == nil and came_as_list[t]) then
    out[#out + 1] = "["
    for i = 1, n do
      if i > 1 then out[#out + 1] = "," end
      put(out, rawget(t, i), depth + 1)
    end
    out[#out + 1] = "]"
    return
  end
  out[#out + 1] = "{"
  local first = true
  for k, v in next, t do
    local kind = type(k)
    if kind == "number" then
      k = math_type(k) == "integer" and format("%d", k) or format("%.14g", k)
      kind = "string"
    end
    if kind == "string" and v ~= nil then
      if not first then out[#out + 1] = "," end
      first = false
      if not utf8_len(k) then k = gsub(k, "[\128-\255]", "?") end
      put_string(out, k)
      out[#out + 1] = ":"
      put(out, v, depth + 1)
    end
  end
  out[#out + 1] = "}"
end

function put(out, v, depth)
  local kind = type(v)
  weight = weight + 1
  if kind == "string" then
    put_string(out, v)
  elseif kind == "number" then
    put_number(out, v)
  elseif kind == "boolean" then
    out[#out + 1] = v and "true" or "false"
  elseif kind == "table" then
    put_table(out, v, depth)
  else
    out[#out + 1] = "null"   -- nil, functions, threads
  end
end

local function encode(v)
  local out = {}
  put(out, v, 1)
  local text = concat(out)
  if #text > MAX_LINE then error("a value is too large", 0) end
  return text
end

-- The host takes messages of so many values only, and ends a worker that sends more.
local function encode_message(v)
  weight = 0
  local text = encode(v)
  if weight > MAX_WEIGHT then error("a value is too large", 0) end
  return text
end

local UNESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

local function not_json(i)
  error(format("not JSON (at byte %d)", i), 0)
end

local function skip(s, i)
  return find(s, "[^ \n\r\t]", i) or #s + 1
end

local function get_string(s, i)
  local stop = find(s, '["\\]', i + 1)
  if stop and byte(s, stop) == 34 then
    return sub(s, i + 1, stop - 1), stop + 1
  end
  local parts, at = {}, i + 1
  while stop do
    parts[#parts + 1] = sub(s, at, stop - 1)
    if byte(s, stop) == 34 then
      return concat(parts), stop + 1
    end
    local c = sub(s, stop + 1, stop + 1)
    if c == "u" then
      local code = tonumber(match(s, "^%x%x%x%x", stop + 2) or not_json(stop), 16)
      at = stop + 6
      if code >= 0xD800 and code < 0xDC00 then
        local low = match(s, "^\\u(%x%x%x%x)", at)
        low = low and tonumber(low, 16)
        if low and low >= 0xDC00 and low < 0xE000 then
          code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
          at = at + 6
        else
          code = 0xFFFD
        end
      elseif code >= 0xDC00 and code < 0xE000 then
        code = 0xFFFD
      end
      parts[#parts + 1] = utf8_char(code)
    else
      parts[#parts + 1] = UNESCAPES[c] or not_json(stop)
      at = stop + 2
    end
    stop = find(s, '["\\]', at)
  end
  not_json(i)
end

local get

local function get_list(s, i, depth)
  local list, n = {}, 0
  came_as_list[list] = true
  i = skip(s, i + 1)
  if byte(s, i) == 93 then return list, i + 1 end
  while true do
    n = n + 1
    list[n], i = get(s, i, depth + 1)
    i = skip(s, i)
    local c = byte(s, i)
    if c == 93 then return list, i + 1 end
    if c ~= 44 then not_json(i) end
    i = i + 1
  end
end

local function get_object(s, i, depth)
  local object = {}
  i = skip(s, i + 1)
  if byte(s, i) == 125 then return object, i + 1 end
  while true do
    i = skip(s, i)
    if byte(s, i) ~= 34 then not_json(i) end
    local key
    key, i = get_string(s, i)
    i = skip(s, i)
    if byte(s, i) ~= 58 then not_json(i) end
    object[key], i = get(s, i + 1, depth + 1)
    i = skip(s, i)
    local c = byte(s, i)
    if c == 125 then break end
    if c ~= 44 then not_json(i) end
    i = i + 1
  end
  local raw = object[RAW]
  if raw ~= nil and type(raw) == "string" then return decode64(raw), i + 1 end
  return object, i + 1
end

function get(s, i, depth)
  if depth > MAX_DEPTH * 4 then not_json(i) end
  i = skip(s, i)
  local c = byte(s, i)
  if c == 34 then return get_string(s, i) end
  if c == 123 then return get_object(s, i, depth) end
  if c == 91 then return get_list(s, i, depth) end
  local word = match(s, "^%a+", i)
  if word == "true" then return true, i + 4 end
  if word == "false" then return false, i + 5 end
  if word == "null" then return nil, i + 4 end
  local number = match(s, "^-?%d+%.?%d*[eE]?[+-]?%d*", i)
  local value = number and tonumber(number)
  if value == nil then not_json(i) end
  return value, i + #number
end

local function decode(s)
  local value, i = get(s, 1, 1)
  if skip(s, i) <= #s then not_json(i) end
  return value
end

local function listed(t)
  came_as_list[t] = true
  return t
end

local function copy(v)
  if type(v) ~= "table" then return v end
  local fresh = {}
  if came_as_list[v] then came_as_list[fresh] = true end
  for k, member in next, v do fresh[k] = copy(member) end
  return fresh
end

---------------------------------------------------------------------------------------------------
-- The budget. Every entry runs in a fresh coroutine with a count hook; so does every coroutine that
-- a script makes. Once the budget is spent each further instruction raises, so that no `pcall` can
-- go on; what no hook can stop (a long pattern match) the host ends from outside.

local budget, allowance, spent = 0, 1000000000, false

local function on_count()
  budget = budget - CHECK
  if budget <= 0 then
    spent = true
    sethook(on_count, "", 1)
    error(BUDGET_SPENT, 0)
  end
  if spent == false then return end
  spent = false
  sethook(on_count, "", CHECK)
end

local function hooked(f)
  local co = co_create(f)
  sethook(co, on_count, "", CHECK)
  return co
end

-- Near the end of the C stack the hook itself cannot be called: its place is taken by an error that
-- says so. Such errors are charged where they are caught, or a script could live off them for ever.
local function charged(ok, ...)
  if not ok then
    local problem = ...
    if type(problem) == "string" and (find(problem, "stack overflow", 1, true) or find(problem, "error handling", 1, true)) then
      budget = budget - CHECK
      if budget <= 0 then
        spent = true
        sethook(on_count, "", 1)
        error(BUDGET_SPENT, 0)
      end
    end
  end
  return ok, ...
end

local function safe_pcall(...) return charged(pcall(...)) end
local function safe_resume(...) return charged(co_resume(...)) end

local function begin_entry(instructions)
  budget, spent = instructions or allowance, false
end

local function words_of(problem)
  if type(problem) == "string" then return problem end
  if type(problem) == "number" then return tostring(problem) end
  if type(problem) == "table" then
    local message = rawget(problem, "message")
    if type(message) == "string" then return message end
  end
  return "(error object is a " .. type(problem) .. " value)"
end

-- Runs f in a coroutine of its own: true and its results, or false and the words of the error.
local function run(f, ...)
  local co = hooked(f)
  local result = pack(co_resume(co, ...))
  if not result[1] then
    local words = words_of(result[2])
    co_close(co)
    return false, words
  end
  if co_status(co) ~= "dead" then
    co_close(co)
    return false, "yield outside a kage call"
  end
  return unpack(result, 1, result.n)
end

---------------------------------------------------------------------------------------------------
-- Talking to the host.

local last_id = 0
local waiting = {}      -- lines of the host that came while a call of ours was open

local function say(method, params)
  send('{"jsonrpc":"2.0","method":"' .. method .. '","params":' .. encode_message(params) .. "}")
end

local write_kept        -- below, where what a script keeps is

local function call(method, params)
  if sub(method, 1, 11) ~= "kage.store." then write_kept() end
  last_id = last_id + 1
  local id = last_id
  send(format('{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}', id, method, encode_message(params)))
  while true do
    local line = receive()
    local message = decode(line)
    if message.method == nil then
      if message.id == id then
        if message.error ~= nil then error(message.error.message, 0) end
        return message.result
      end
      -- an answer to a call that was given up when its budget ran out
    else
      waiting[#waiting + 1] = message
    end
  end
end

---------------------------------------------------------------------------------------------------
-- What a script registers.

local stem, settings = "?", {}
local handlers, commands, order, keys, renderers, providers, hooks_in, widgets
local header, footer, dirty, warned
local tools, timers, last_timer, in_timer = {}, {}, 0, false
local sources, failure = {}, nil  -- providers of models, and the typed error of the one that runs

local function forget()
  handlers, commands, order = {}, {}, {}
  tools, timers, sources = {}, {}, {}
  keys, renderers, providers, hooks_in, widgets = {}, {}, {}, {}, {}
  header, footer, dirty, warned = nil, nil, true, {}
end
forget()

local function registrations()
  if not dirty then return nil end
  dirty = false
  local found = {
    events = listed({}), commands = listed({}), keys = listed({}), renderers = listed({}),
    completes = #providers > 0,
  }
  for name, list in next, handlers do
    if #list > 0 then found.events[#found.events + 1] = name end
  end
  for i, command in next, order do
    found.commands[i] = {
      name = command.name, description = command.description, aliases = command.aliases,
      args = command.shown, override = command.override,
    }
  end
  for i, one in next, keys do found.keys[i] = { key = one.key, description = one.description } end
  found.tools = listed({})
  for i, one in next, tools do
    found.tools[i] = {
      name = one.name, description = one.description, inputSchema = one.schema, risk = one.risk,
    }
  end
  found.providers = listed({})
  for i, one in next, sources do found.providers[i] = { id = one.id, models = one.models } end
  for kind in next, renderers do found.renderers[#found.renderers + 1] = kind end
  found.header, found.footer = header ~= nil, footer ~= nil
  return found
end

---------------------------------------------------------------------------------------------------
-- The `kage` table.

local function misuse(name, words) error(name .. ": " .. words, 0) end

local function need_text(name, field, value)
  if type(value) ~= "string" or value == "" then misuse(name, field .. " must be a non-empty string") end
  return value
end

local function text_list(name, field, value)
  if type(value) ~= "table" then misuse(name, field .. " must be a list of strings") end
  local list = {}
  for i = 1, rawlen(value) do
    local one = rawget(value, i)
    if type(one) ~= "string" then misuse(name, field .. " must be a list of strings") end
    list[i] = one
  end
  for k in next, value do
    if math_type(k) ~= "integer" or k < 1 or k > #list then
      misuse(name, field .. " must be a list of strings")
    end
  end
  came_as_list[list] = true
  return list
end

local kage = {
  ui = {}, session = {}, fs = {}, http = {}, json = {}, store = {}, crypto = {},
}
local LEVELS = { info = "info", warning = "warning", warn = "warning", error = "error" }

function kage.notify(message, level)
  if level == nil then level = "info" end
  local known = LEVELS[level]
  if known == nil then misuse("kage.notify", "unknown level " .. tostring(level)) end
  say("kage.notify", { message = tostring(message), level = known })
end
kage.ui.notify = kage.notify

local LOG_LEVELS = { trace = "trace", debug = "debug", info = "info", warn = "warn", error = "error" }
function kage.log(level, message)
  say("kage.log", { level = LOG_LEVELS[level] or "info", message = tostring(message) })
end

local attach = {}

function kage.request_capabilities(names)
  local wanted = text_list("kage.request_capabilities", "names", names)
  local answer = call("kage.request_capabilities", { names = wanted })
  for name, active in next, answer do
    if active and attach[name] then attach[name]() end
  end
  return answer
end

function kage.on(event, handler)
  if type(handler) ~= "function" then misuse("kage.on", "handler must be a function") end
  local kind = type(event) == "string" and settings.events[event] or nil
  if kind == nil then
    if not warned[event] then
      warned[event] = true
      local why = settings.refused[event]
      if why then
        -- Shown to people: a handler that never runs must not look as if it did.
        say("kage.notify", {
          level = "error",
          message = "event " .. event .. " never happens here, its handler is not used: " .. why,
        })
      else
        say("kage.log", { level = "warn", message = "unknown event " .. tostring(event) })
      end
    end
    return function() end
  end
  if settings.withheld[event] then
    say("kage.log", {
      level = "warn",
      message = "event " .. event .. " carries conversation text: it needs the capability context",
    })
    return function() end
  end
  local one = { run = handler }
  local list = handlers[event] or {}
  handlers[event] = list
  list[#list + 1] = one
  dirty = true
  return function()
    for i, other in next, list do
      if other == one then
        local fresh = {}
        for j = 1, #list do
          if j ~= i then fresh[#fresh + 1] = list[j] end
        end
        list, handlers[event], dirty = fresh, fresh, true
        return
      end
    end
  end
end

local ARG_KINDS = { text = true, choice = true, path = true, session = true, flag = true }

local function read_args(who, given)
  if given == nil then return {} end
  if type(given) ~= "table" then misuse(who, "args must be a list") end
  local args = {}
  for i = 1, rawlen(given) do
    local one = rawget(given, i)
    if type(one) ~= "table" then misuse(who, "args must be a list of tables") end
    local kind = one.kind or "text"
    if not ARG_KINDS[kind] then misuse(who, "unknown arg kind " .. tostring(kind)) end
    local arg = { name = need_text(who, "arg name", one.name), kind = kind, optional = one.optional == true }
    if type(one.hint) == "string" then arg.hint = one.hint end
    if kind == "choice" then
      arg.choices = text_list(who, "choices", one.choices)
      if #arg.choices == 0 then misuse(who, "choices must not be empty") end
    end
    args[i] = arg
  end
  return args
end

local function register_command(who, spec, override)
  if type(spec) ~= "table" then misuse(who, "takes a table") end
  local name = need_text(who, "name", spec.name)
  if find(name, "^[/:]") or find(name, "%s") then
    misuse(who, "name must have no leading / or : and no blanks")
  end
  if type(spec.description) ~= "string" then misuse(who, "description must be a string") end
  if type(spec.handler) ~= "function" then misuse(who, "handler must be a function") end
  local aliases = spec.aliases ~= nil and text_list(who, "aliases", spec.aliases) or {}
  local args = read_args(who, spec.args)
  for _, one in next, { name, unpack(aliases) } do
    if settings.builtin[one] and not override then
      misuse(who, format("%q is a built-in command", one))
    end
  end
  came_as_list[aliases] = true
  local shown = copy(args)
  came_as_list[shown] = true
  local command = {
    name = name, description = spec.description, aliases = aliases, args = args, shown = shown,
    handler = spec.handler, override = override,
  }
  order[#order + 1] = command
  for _, one in next, { name, unpack(aliases) } do
    if commands[one] == nil then commands[one] = command end
  end
  dirty = true
end

function kage.register_command(spec) register_command("kage.register_command", spec, false) end
function kage.override_command(spec) register_command("kage.override_command", spec, true) end

-- Tools of agents: the host names them after the script, and agents have those they are given.

local RISKS = { read = true, write = true, exec = true, network = true }

function kage.register_tool(spec)
  local who = "kage.register_tool"
  if type(spec) ~= "table" then misuse(who, "takes a table") end
  local name = need_text(who, "name", spec.name)
  if type(spec.description) ~= "string" then misuse(who, "description must be a string") end
  if type(spec.schema) ~= "table" then misuse(who, "schema must be a table") end
  if type(spec.execute) ~= "function" then misuse(who, "execute must be a function") end
  local risk = spec.risk == nil and "read" or spec.risk
  if not RISKS[risk] then misuse(who, "unknown risk " .. tostring(risk)) end
  -- Kept as it is now: what the script does to its table afterwards changes no tool.
  local one = {
    name = name, description = spec.description, schema = decode(encode(spec.schema)), risk = risk,
    execute = spec.execute,
  }
  dirty = true
  for i, other in next, tools do
    if other.name == name then
      tools[i] = one
      return
    end
  end
  if #tools >= settings.max_tools then misuse(who, format("a script has at most %d tools", settings.max_tools)) end
  tools[#tools + 1] = one
end

-- Models that a script provides. The host asks for an answer as for an event; what is emitted is
-- taken one by one, so that a script is never far ahead of who reads.

local ERROR_KINDS = { transport = true, rate_limited = true, http = true, auth = true, unknown_model = true, decode = true }

attach.provider = function()
  function kage.register_provider(spec)
    local who = "kage.register_provider"
    if type(spec) ~= "table" then misuse(who, "takes a table") end
    local id = need_text(who, "id", spec.id)
    if not find(id, "^%w[%w._-]*$") or #id > 64 then misuse(who, "id must be up to 64 letters, digits, . _ -") end
    if type(spec.stream) ~= "function" then misuse(who, "stream must be a function") end
    if spec.models ~= nil and type(spec.models) ~= "table" then misuse(who, "models must be a list") end
    local models = listed({})
    for i = 1, rawlen(spec.models or {}) do
      local one = rawget(spec.models, i)
      if type(one) ~= "table" then misuse(who, "models must be a list of tables") end
      if i > settings.max_models then misuse(who, format("a provider has at most %d models", settings.max_models)) end
      if one.context ~= nil and (math_type(one.context) ~= "integer" or one.context < settings.min_window or one.context > settings.max_window) then
        misuse(who, format("context of a model must be between %d and %d tokens", settings.min_window, settings.max_window))
      end
      models[i] = { id = need_text(who, "id of a model", one.id), context = one.context }
    end
    local made = { id = id, models = models, stream = spec.stream }
    dirty = true
    for i, other in next, sources do
      if other.id == id then
        sources[i] = made
        return
      end
    end
    if #sources >= settings.max_providers then
      misuse(who, format("a script has at most %d providers", settings.max_providers))
    end
    sources[#sources + 1] = made
  end

  function kage.provider_error(kind, message, status)
    local who = "kage.provider_error"
    if not ERROR_KINDS[kind] then misuse(who, "unknown kind " .. tostring(kind)) end
    failure = { kind = kind, message = tostring(message), status = math_type(status) == "integer" and status or nil }
    error(failure.message, 0)
  end
end

-- Later calls. The host keeps the time and asks for each call as for an event.

local function later(who, fn, ms, every)
  if type(fn) ~= "function" then misuse(who, "takes a function") end
  if math_type(ms) == "float" and ms == ms // 1 then ms = ms // 1 | 0 end
  if math_type(ms) ~= "integer" or ms < (every and 50 or 0) or ms > settings.max_timer_ms then
    misuse(who, format("takes %d to %d milliseconds", every and 50 or 0, settings.max_timer_ms))
  end
  local count = 0
  for _ in next, timers do count = count + 1 end
  if count >= settings.max_timers then
    misuse(who, format("a script has at most %d calls waiting", settings.max_timers))
  end
  last_timer = last_timer + 1
  local id = last_timer
  timers[id] = { run = fn, every = every }
  say("kage.timer", { id = id, ms = ms, every = every })
  return function()
    if timers[id] ~= nil then
      timers[id] = nil
      say("kage.timer.stop", { id = id })
    end
  end
end

function kage.schedule(fn) later("kage.schedule", fn, 0, false) end
function kage.defer(fn, ms) return later("kage.defer", fn, ms, false) end
function kage.timer(fn, ms) return later("kage.timer", fn, ms, true) end

-- Dialogs: the worker waits, the host shows them. Only this script stands still meanwhile.

local function title_of(who, title)
  if in_timer then misuse(who, "no dialogs from a timer") end
  if type(title) ~= "string" then misuse(who, "title must be a string") end
  return title
end

function kage.ui.select(title, items)
  local who = "kage.ui.select"
  title_of(who, title)
  if type(items) ~= "table" then misuse(who, "items must be a table") end
  local shown, values = {}, {}
  for i = 1, rawlen(items) do
    local item = rawget(items, i)
    if type(item) == "string" then
      shown[i], values[i] = { label = item }, item
    elseif type(item) == "table" and type(item.label) == "string" then
      shown[i] = { label = item.label, detail = type(item.detail) == "string" and item.detail or nil }
      values[i] = item.value
      if values[i] == nil then values[i] = item.label end
    else
      misuse(who, "each item must be a string or a table with a label")
    end
  end
  came_as_list[shown] = true
  local chosen = call("kage.ui.select", { title = title, items = shown })
  if chosen == nil then return nil end
  return values[chosen]
end

function kage.ui.confirm(title, message)
  title_of("kage.ui.confirm", title)
  local text = message ~= nil and tostring(message) or ""
  return call("kage.ui.confirm", { title = title, message = text }) == true
end

function kage.ui.input(title, placeholder)
  title_of("kage.ui.input", title)
  return call("kage.ui.input", { title = title, placeholder = placeholder ~= nil and tostring(placeholder) or nil })
end

function kage.ui.editor(title, prefill)
  title_of("kage.ui.editor", title)
  return call("kage.ui.editor", { title = title, prefill = prefill ~= nil and tostring(prefill) or nil })
end

local function drawn_by(who, fn)
  if fn ~= nil and type(fn) ~= "function" then misuse(who, "takes a function or nil") end
  dirty = true
  return fn
end

function kage.ui.set_header(fn) header = drawn_by("kage.ui.set_header", fn) end
function kage.ui.set_footer(fn) footer = drawn_by("kage.ui.set_footer", fn) end

function kage.register_block_renderer(kind, fn)
  need_text("kage.register_block_renderer", "kind", kind)
  renderers[kind] = drawn_by("kage.register_block_renderer", fn)
end

local function without(list, one)
  for i = #list, 1, -1 do
    if list[i] == one then remove(list, i) end
  end
  dirty = true
end

function kage.register_keybinding(spec, fn)
  local who = "kage.register_keybinding"
  if type(spec) == "string" then spec = { key = spec } end
  if type(spec) ~= "table" then misuse(who, "takes a chord or a table") end
  if type(fn) ~= "function" then misuse(who, "handler must be a function") end
  local one = {
    key = need_text(who, "key", spec.key), run = fn,
    description = type(spec.description) == "string" and spec.description or nil,
  }
  keys[#keys + 1] = one
  dirty = true
  return function() without(keys, one) end
end

function kage.add_autocomplete_provider(spec)
  local who = "kage.add_autocomplete_provider"
  if type(spec) ~= "table" then misuse(who, "takes a table") end
  local name = need_text(who, "name", spec.name)
  if type(spec.complete) ~= "function" then misuse(who, "complete must be a function") end
  dirty = true
  for _, one in next, providers do
    if one.name == name then
      one.complete = spec.complete
      return
    end
  end
  providers[#providers + 1] = { name = name, complete = spec.complete }
end

function kage.on_terminal_input(fn)
  if type(fn) ~= "function" then misuse("kage.on_terminal_input", "takes a function") end
  local one = { run = fn }
  hooks_in[#hooks_in + 1] = one
  dirty = true
  return function() without(hooks_in, one) end
end

function kage.register_widget(spec)
  if type(spec) ~= "table" then misuse("kage.register_widget", "takes a table") end
  local key = need_text("kage.register_widget", "key", spec.key)
  if type(spec.render) ~= "function" then misuse("kage.register_widget", "render must be a function") end
  widgets[key] = spec.render
end

function kage.set_status(key, text)
  say("kage.set_status", { key = need_text("kage.set_status", "key", key), text = tostring(text) })
end
function kage.clear_status(key)
  say("kage.set_status", { key = need_text("kage.clear_status", "key", key) })
end

-- Sessions.

local function anchor_of(who, at)
  if at ~= nil and type(at) ~= "string" then misuse(who, "target must be an entry-id string or nil") end
  return at
end

function kage.session.list() return call("kage.session.list", {}) end
function kage.session.fork(at)
  call("kage.session.fork", { at = anchor_of("kage.session.fork", at) })
end
function kage.session.append_entry(kind, data)
  local who = "kage.session.append_entry"
  need_text(who, "kind", kind)
  if data ~= nil and type(data) ~= "table" then misuse(who, "data must be a table") end
  call(who, { kind = kind, data = data or {} })
end
function kage.session.set_label(anchor, label)
  local who = "kage.session.set_label"
  need_text(who, "anchor", anchor)
  if label ~= nil and type(label) ~= "string" then misuse(who, "label must be a string or nil") end
  call(who, { anchor = anchor, label = label })
end

function kage.compact(prompt)
  if prompt ~= nil and type(prompt) ~= "string" then misuse("kage.compact", "prompt must be a string") end
  call("kage.compact", { prompt = prompt })
end

attach.session_write = function()
  kage.send_message = function(text, options)
    local who = "kage.send_message"
    need_text(who, "text", text)
    if options ~= nil and type(options) ~= "table" then misuse(who, "options must be a table") end
    local as = options and options.deliver_as
    if as ~= nil and as ~= "user" then misuse(who, 'deliver_as must be "user"') end
    call(who, { text = text, trigger_turn = not (options and options.trigger_turn == false) })
  end
  kage.session.entries = function() return call("kage.session.entries", {}) end
  kage.session.switch = function(target)
    local who = "kage.session.switch"
    if type(target) ~= "string" then misuse(who, "target must be a session id or path string") end
    if target == "" then misuse(who, "target must be non-empty") end
    call(who, { target = target })
  end
  kage.session.fork_to = function(at)
    call("kage.session.fork_to", { at = anchor_of("kage.session.fork_to", at) })
  end
end

-- Files, network, programs.

function kage.fs.read(path)
  if type(path) ~= "string" then misuse("kage.fs.read", "path must be a string") end
  return call("kage.fs.read", { path = path })
end
function kage.fs.write(path, content)
  if type(path) ~= "string" then misuse("kage.fs.write", "path must be a string") end
  if type(content) ~= "string" then misuse("kage.fs.write", "content must be a string") end
  call("kage.fs.write", { path = path, content = content })
end

local function http(method)
  local who = "kage.http." .. method
  return function(url, options)
    need_text(who, "url", url)
    if options ~= nil and type(options) ~= "table" then misuse(who, "options must be a table") end
    local given = { url = url, method = method, options = {} }
    for _, field in next, { "headers", "body", "max_bytes", "timeout_secs" } do
      given.options[field] = options and options[field]
    end
    if options and options.json ~= nil then given.options.body = encode(options.json) given.options.json = true end
    return call(method == "post_stream" and who or "kage.http", given)
  end
end
kage.http.get, kage.http.post, kage.http.delete = http("get"), http("post"), http("delete")

attach.net = function()
  local open = http("post_stream")
  kage.http.post_stream = function(url, options, fn)
    local who = "kage.http.post_stream"
    if type(fn) ~= "function" then misuse(who, "takes a function") end
    local stream = open(url, options)
    local ok, problem = pcall(function()
      while true do
        local page = call("kage.http.next", { id = stream.id })
        for _, frame in next, page.frames do fn(frame) end
        if page.done then return end
      end
    end)
    if not ok then
      pcall(call, "kage.http.close", { id = stream.id })
      error(problem, 0)
    end
    return { status = stream.status, content_type = stream.content_type }
  end
end

-- Pure functions over bytes. Digests are worked out in this process; keys are used by the host.

attach.crypto = function()
  local crypto = {}
  local function bytes(who, field, value)
    if type(value) ~= "string" then misuse("kage.crypto." .. who, field .. " must be a string") end
    return value
  end
  local function of(who, ...)
    local found = digest(who, ...)
    if found == nil then misuse("kage.crypto." .. who, "invalid input") end
    return found
  end
  local function count_of(who, count, highest)
    if math_type(count) ~= "integer" or count < 1 or count > highest then
      misuse("kage.crypto." .. who, format("takes 1 to %d bytes", highest))
    end
    return count
  end
  for _, name in next, { "sha256", "sha512", "to_base64", "from_base64", "to_hex", "from_hex" } do
    crypto[name] = function(data) return of(name, bytes(name, "data", data), "", "", 0) end
  end
  function crypto.random_bytes(count)
    return of("random_bytes", "", "", "", count_of("random_bytes", count, 1048576))
  end
  function crypto.hmac_sha256(key, data)
    return of("hmac_sha256", bytes("hmac_sha256", "key", key), bytes("hmac_sha256", "data", data), "", 0)
  end
  function crypto.hkdf_sha256(ikm, salt, info, length)
    local who = "hkdf_sha256"
    return of(who, bytes(who, "ikm", ikm), bytes(who, "salt", salt), bytes(who, "info", info), count_of(who, length, 8160))
  end
  function crypto.aes256gcm_decrypt(key, iv, aad, ciphertext, tag)
    local who = "aes256gcm_decrypt"
    return call("kage.crypto", {
      name = who, key = bytes(who, "key", key), iv = bytes(who, "iv", iv), aad = bytes(who, "aad", aad),
      data = bytes(who, "ciphertext", ciphertext), tag = bytes(who, "tag", tag),
    })
  end
  function crypto.ed25519_sign(key, message)
    local who = "ed25519_sign"
    return call("kage.crypto", { name = who, key = bytes(who, "key", key), data = bytes(who, "message", message) })
  end
  for name, fn in next, crypto do kage.crypto[name] = fn end
end

attach.exec = function()
  kage.exec = function(spec)
    local who = "kage.exec"
    if type(spec) ~= "table" then misuse(who, "takes a table") end
    local cmd, args, cwd, timeout = spec.cmd, spec.args, spec.cwd, spec.timeout_secs
    if type(cmd) ~= "string" or cmd == "" then misuse(who, "cmd must be a non-empty string") end
    args = args == nil and {} or text_list(who, "args", args)
    came_as_list[args] = true
    if cwd ~= nil and type(cwd) ~= "string" then misuse(who, "cwd must be a string") end
    if timeout ~= nil and type(timeout) ~= "number" then misuse(who, "timeout_secs must be a number") end
    return call(who, { cmd = cmd, args = args, cwd = cwd, timeout_secs = timeout })
  end
end

attach.env = function()
  kage.env = function(name)
    return call("kage.env", { name = need_text("kage.env", "name", name) })
  end
end

-- The rest.

function kage.now_ms() return now_ms() end
function kage.sleep_ms(ms)
  if type(ms) ~= "number" or ms < 0 or ms > 500 then misuse("kage.sleep_ms", "takes 0 to 500") end
  call("kage.sleep_ms", { ms = ms })
end
function kage.config() return call("kage.config", {}) end
function kage.plugin_config() return copy(settings.config) end
function kage.context_usage() return call("kage.context_usage", {}) end
function kage.api_version() return settings.api_version end
function kage.host_version() return settings.host_version end
function kage.requires(wanted)
  if type(wanted) ~= "table" then misuse("kage.requires", "takes a table") end
  local api = wanted.api
  if api ~= nil and (type(api) ~= "number" or api > settings.api_version) then
    misuse("kage.requires", format("this host has API %d, the script needs %s", settings.api_version, tostring(api)))
  end
end
function kage.json.encode(value) return encode(value) end
function kage.json.decode(text)
  if type(text) ~= "string" then misuse("kage.json.decode", "takes a string") end
  local ok, value = pcall(decode, text)
  if not ok then misuse("kage.json.decode", tostring(value)) end
  return value
end

-- What is kept lies here as JSON text, by name, from its first use on: only this worker changes it.
-- What changed is sent when a handler ends, and ahead of every call that reaches outside.
local kept, kept_bytes, kept_changed

local function kept_values()
  if kept ~= nil then return kept end
  local found, bytes, start, page = {}, 0, 0, nil
  repeat
    page = call("kage.store.load", { from = start })
    for name, text in next, page.values do
      found[name] = text
      bytes = bytes + #name + #text
      start = start + 1
    end
  until not page.more
  kept, kept_bytes, kept_changed = found, bytes, {}
  return kept
end

local function keep(where, name, text)
  need_text(where, "key", name)
  if #name > settings.store_name_bytes or not utf8_len(name) then
    misuse(where, format("key must be UTF-8 of at most %d bytes", settings.store_name_bytes))
  end
  local values = kept_values()
  local before = values[name]
  if text == before then return end
  local bytes = kept_bytes + (text and #name + #text or 0) - (before and #name + #before or 0)
  if text and bytes > settings.store_bytes then
    misuse(where, format("a script keeps at most %d bytes", settings.store_bytes))
  end
  values[name], kept_bytes, kept_changed[name] = text, bytes, true
end

local function send_kept(new, gone, more)
  local ok, problem = pcall(call, "kage.store.change", { new = new, gone = listed(gone), more = more })
  if not ok then
    kept, kept_changed = nil, nil   -- the host's file counts again
    error(problem, 0)
  end
end

function write_kept()
  if kept_changed == nil or next(kept_changed) == nil then return end
  local changed, new, gone, count, bytes = kept_changed, {}, {}, 0, 0
  kept_changed = {}
  for name in next, changed do
    local text = kept[name]
    local size = #name + (text and #text or 0)
    if count >= 1000 or (count > 0 and bytes + size > 65536) then
      send_kept(new, gone, true)
      new, gone, count, bytes = {}, {}, 0, 0
    end
    if text then new[name] = text else gone[#gone + 1] = name end
    count, bytes = count + 1, bytes + size
  end
  send_kept(new, gone, false)
end

function kage.store.get(key)
  local text = kept_values()[need_text("kage.store.get", "key", key)]
  return text and decode(text)
end
function kage.store.set(key, value)
  if value == nil then value = false end
  keep("kage.store.set", key, encode(value))
end
function kage.store.delete(key) keep("kage.store.delete", key, nil) end
function kage.store.keys()
  local names = {}
  for name in next, kept_values() do names[#names + 1] = name end
  sort(names)
  return listed(names)
end

---------------------------------------------------------------------------------------------------
-- The sandbox: what a script's environment holds.

local function set_metatable(t, mt)
  if type(t) ~= "table" then error("bad argument #1 to 'setmetatable' (table expected)", 2) end
  if type(mt) == "table" and rawget(mt, "__gc") ~= nil then
    error("__gc is not available", 2)   -- finalizers run where no budget reaches them
  end
  return setmetatable(t, mt)
end

local function safe_xpcall(f, handler, ...)
  local result = pack(safe_pcall(f, ...))
  if result[1] then return unpack(result, 1, result.n) end
  return false, select(2, safe_pcall(handler, result[2]))
end

local function resumed(co, ok, ...)
  if ok then return ... end
  local problem = ...
  co_close(co)
  error(problem, 0)
end

local safe_coroutine = {
  create = function(f)
    if type(f) ~= "function" then error("bad argument #1 to 'create' (function expected)", 2) end
    return hooked(f)
  end,
  wrap = function(f)
    if type(f) ~= "function" then error("bad argument #1 to 'wrap' (function expected)", 2) end
    local co = hooked(f)
    return function(...) return resumed(co, safe_resume(co, ...)) end
  end,
  resume = safe_resume, yield = co_yield, status = co_status, running = co_running,
  isyieldable = co_isyieldable, close = co_close,
}

local function say_line(...)
  local parts = pack(...)
  for i = 1, parts.n do parts[i] = tostring(parts[i]) end
  say("kage.log", { level = "info", message = concat(parts, "\t") })
end

local function garbage(option)
  if option == "count" then return collect("count") end
  if option == nil or option == "collect" or option == "step" then return 0 end
  error("collectgarbage: only \"count\" is available", 2)
end

local function snapshot(source, left_out)
  local fresh = {}
  for k, v in next, source do
    if not (left_out and left_out[k]) then fresh[k] = v end
  end
  return fresh
end

local string_meta = getmetatable("")
string_meta.__index = snapshot(string, { dump = true })
string_meta.__metatable = false

local environment = {
  string = snapshot(string, { dump = true }), table = snapshot(table), math = snapshot(math),
  utf8 = snapshot(utf8), coroutine = safe_coroutine,
  os = { time = os.time, date = os.date, clock = os.clock, difftime = os.difftime },
  kage = kage, pcall = safe_pcall, xpcall = safe_xpcall, error = error, assert = assert,
  select = select, next = next, pairs = pairs, ipairs = ipairs, type = type, tostring = tostring,
  tonumber = tonumber, rawget = rawget, rawequal = rawequal, rawlen = rawlen,
  setmetatable = set_metatable, getmetatable = getmetatable, print = say_line,
  collectgarbage = garbage, _VERSION = _VERSION,
}
environment._G = environment
setmetatable(environment, { __metatable = false })
setmetatable(kage, { __metatable = false })

-- Nothing of the original globals is needed from here on, and nothing of it stays.
local globals = _G
for name in next, snapshot(globals) do rawset(globals, name, nil) end

---------------------------------------------------------------------------------------------------
-- Entries: what the host asks of us.

local entry = {}

function entry.load(params)
  stem, settings = params.stem, params
  allowance = params.instructions
  begin_entry()
  local chunk, problem = load(params.source, "=" .. stem, "t", environment)
  if chunk == nil then return { ok = false, error = words_of(problem) } end
  local ok, words = run(chunk)
  if not ok then
    forget()
    return { ok = false, error = words }
  end
  return { ok = true }
end

local kinds = {}

local function each(name, problems, payload, take)
  for _, one in next, handlers[name] or {} do
    local ok, value = run(one.run, copy(payload))
    if not ok then problems[#problems + 1] = value end
    if take(ok, value) then return end
    if spent then return end
  end
end

function kinds.notification(name, payload, problems)
  each(name, problems, payload, function() end)
end

function kinds.transform(name, payload, problems)
  local list = handlers[name] or {}
  local changed = nil
  for _, one in next, list do
    local ok, value = run(one.run, copy(payload))
    if not ok then
      problems[#problems + 1] = value
    elseif value ~= nil then
      local converted, text = pcall(encode, value)
      if converted then
        payload = decode(text)
        changed = payload
      else
        problems[#problems + 1] = tostring(text)
      end
    end
    if spent then break end
  end
  return changed
end

function kinds.predicate(name, payload, problems)
  local stop = false
  each(name, problems, payload, function(ok, value)
    stop = ok and value == true
    return stop
  end)
  return stop
end

function kinds.veto(name, payload, problems)
  local decision = {}
  each(name, problems, payload, function(ok, value)
    if not ok then
      decision = { cancel = "a handler failed: " .. value }
      return true
    end
    if type(value) ~= "table" then return false end
    local cancel, patch = rawget(value, "cancel"), rawget(value, "patch")
    if cancel then
      decision = { cancel = type(cancel) == "string" and cancel or "cancelled" }
      return true
    end
    if type(patch) == "string" then
      decision = { patch = patch }
      return true
    end
    return false
  end)
  if spent and decision.cancel == nil then decision = { cancel = BUDGET_SPENT } end
  return decision
end

function entry.event(params)
  begin_entry()
  local problems = {}
  local kind = settings.events[params.name]
  local value = kinds[kind](params.name, params.payload, problems)
  came_as_list[problems] = true
  return { value = value, errors = problems }
end

local FLAGS = {
  ["true"] = true, yes = true, on = true, ["1"] = true,
  ["false"] = false, no = false, off = false, ["0"] = false,
}

local function parse_args(command, raw)
  local parsed, rest = {}, match(raw, "^%s*(.-)%s*$")
  for _, arg in next, command.args do
    local value
    if arg.kind == "text" then
      if rest ~= "" then value = rest end
      rest = ""
    else
      local token, after = match(rest, "^(%S+)%s*(.*)$")
      if token then
        value, rest = token, after
        if arg.kind == "choice" then
          local known = false
          for _, one in next, arg.choices do known = known or one == token end
          if not known then
            return nil, format("%s: %s must be one of %s", command.name, arg.name, concat(arg.choices, ", "))
          end
        elseif arg.kind == "flag" then
          value = FLAGS[lower(token)]
          if value == nil then
            return nil, format("%s: %s must be on or off", command.name, arg.name)
          end
        end
      end
    end
    if value == nil and not arg.optional then
      return nil, format("%s: missing required arg %s", command.name, arg.name)
    end
    parsed[arg.name] = value
    if arg.kind == "text" then break end
  end
  return parsed
end

local function output_of(value)
  if value == nil then return {} end
  if type(value) == "string" then return { text = value } end
  if type(value) == "table" then
    local text = value.text
    return {
      text = text ~= nil and tostring(text) or nil, is_error = value.is_error == true,
      structured = value.structured,
    }
  end
  return { text = tostring(value) }
end

local function run_handler(label, f, ...)
  local ok, output = run(function(...) return output_of((f(...))) end, ...)
  if ok then return output end
  return { text = label .. ": " .. output, is_error = true }
end

function entry.command(params)
  begin_entry()
  local command = commands[params.name]
  if command == nil then return { text = "no command " .. params.name, is_error = true } end
  local parsed, problem = parse_args(command, params.raw)
  if parsed == nil then return { text = problem, is_error = true } end
  return run_handler("plugin command " .. command.name, command.handler, params.raw, nil, parsed)
end

function entry.tool(params)
  begin_entry()
  for _, one in next, tools do
    if one.name == params.name then return run_handler(one.name, one.execute, params.input) end
  end
  return { text = "no tool " .. tostring(params.name), is_error = true }
end

function entry.provider(params)
  begin_entry()
  failure = nil
  local source
  for _, one in next, sources do
    if one.id == params.id then source = one end
  end
  if source == nil then return { error = "no provider " .. tostring(params.id), kind = "unknown_model" } end
  local function emit(event)
    if type(event) ~= "table" then misuse("emit", "takes a table") end
    call("kage.provider.emit", { stream = params.stream, event = event })
  end
  local ok, words = run(function()
    local given = source.stream(params.request, emit)
    if type(given) == "table" then
      for i = 1, rawlen(given) do emit(rawget(given, i)) end
    elseif type(given) == "function" then
      for event in given do emit(event) end
    end
  end)
  if ok then return {} end
  if failure ~= nil and failure.message == words then
    return { error = words, kind = failure.kind, status = failure.status }
  end
  return { error = words }
end

function entry.timer(params)
  begin_entry()
  local one = timers[params.id]
  if one == nil then return { gone = true } end
  if not one.every then timers[params.id] = nil end
  in_timer = true
  local ok, words = run(one.run)
  in_timer = false
  if ok then return {} end
  timers[params.id] = nil
  return { error = words }
end

function entry.key(params)
  begin_entry()
  for _, one in next, keys do
    if one.key == params.key then return run_handler("plugin key " .. one.key, one.run) end
  end
  return {}
end

local SPAN_TEXT, SPAN_FLAGS = { "fg", "bg", "hl" }, { "bold", "dim", "italic", "underline" }

local function span_of(value)
  if type(value) == "string" then return { text = value } end
  if type(value) ~= "table" or type(value.text) ~= "string" then return nil end
  local span = { text = value.text }
  for _, field in next, SPAN_TEXT do
    if type(value[field]) == "string" then span[field] = value[field] end
  end
  for _, field in next, SPAN_FLAGS do
    if value[field] == true then span[field] = true end
  end
  return span
end

local function line_of(value)
  local span = span_of(value)
  if span then return { span } end
  if type(value) ~= "table" then return nil end
  local line = {}
  for i = 1, rawlen(value) do
    local one = span_of(rawget(value, i))
    if one then line[#line + 1] = one end
  end
  return #line > 0 and line or nil
end

local function lines_of(value)
  local span = span_of(value)
  if span then return { { span } } end
  local lines = {}
  if type(value) == "table" then
    for i = 1, rawlen(value) do
      local line = line_of(rawget(value, i))
      if line then lines[#lines + 1] = line end
    end
  end
  return lines
end

local RENDER_SHARE, COMPLETE_SHARE, KEY_SHARE = 10000000, 20000000, 5000000

function entry.render(params)
  begin_entry(RENDER_SHARE)
  local fn, argument
  if params.what == "header" then
    fn, argument = header, params.width
  elseif params.what == "footer" then
    fn, argument = footer, params.width
  elseif params.what == "widget" then
    fn, argument = widgets[params.kind], params.width
  else
    fn, argument = renderers[params.kind], params.block
  end
  if fn == nil then return { lines = listed({}) } end
  local ok, lines = run(function(a) return lines_of((fn(a))) end, argument)
  if not ok then return { error = lines } end
  came_as_list[lines] = true
  return { lines = lines }
end

function entry.complete(params)
  begin_entry(COMPLETE_SHARE)
  local context = { text = params.text, cursor = params.cursor }
  for i = #providers, 1, -1 do
    local one = providers[i]
    local ok, items = run(function()
      local given = one.complete(params.prefix, context)
      local found = {}
      if type(given) ~= "table" then return found end
      for j = 1, rawlen(given) do
        local item = rawget(given, j)
        if type(item) == "table" and type(item.value) == "string" then
          found[#found + 1] = {
            value = item.value, label = type(item.label) == "string" and item.label or item.value,
            detail = type(item.detail) == "string" and item.detail or nil,
          }
        end
      end
      return found
    end)
    if ok and #items > 0 then
      came_as_list[items] = true
      return { items = items }
    end
  end
  return { items = listed({}) }
end

function entry.input(params)
  begin_entry(KEY_SHARE)
  for _, one in next, copy(hooks_in) do
    local ok, value = run(one.run, copy(params.key))
    if ok and value == true then return { consumed = true } end
  end
  return { consumed = false }
end

function entry.ping() return {} end

local function answer(message)
  if message.method == nil or message.id == nil then return end
  local work = entry[message.method]
  if work == nil then
    send(format('{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"unknown method"}}', message.id))
    return
  end
  local result = work(message.params or {})
  if work ~= entry.ping then
    local written, problem = pcall(write_kept)
    if not written then say("kage.notify", { level = "error", message = "kage.store: " .. words_of(problem) }) end
  end
  result.registrations = registrations()
  local ok, text = pcall(encode_message, result)
  if not ok then
    text = encode({ ok = false, error = tostring(text), text = "the answer " .. tostring(text), is_error = true, errors = listed({}) })
  end
  send(format('{"jsonrpc":"2.0","id":%d,"result":%s}', message.id, text))
end

local function take(line)
  answer(decode(line))
  while #waiting > 0 do
    answer(remove(waiting, 1))
  end
end

return function(line)
  if line == nil then
    collect("collect")
  else
    take(line)
  end
end
