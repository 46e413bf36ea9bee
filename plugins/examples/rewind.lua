-- rewind: take back an exchange with the agent, words and files together.
--
--   /undo [force]      drop the last exchange; files go back to where they were before it
--   /redo [force]      take back the last /undo or /rewind, as often as there were any
--   /rewind [entry]    choose a point of the conversation and go there
--
-- Grant it both powers in config.toml; with session_write alone it moves the conversation only:
--
--   [plugins.capabilities]
--   rewind = ["session_write", "exec"]
--
-- Files are kept as git objects, untracked ones included (ignored ones are left alone). Nothing of
-- yours is touched for that: not HEAD, not the branch, not the index, not the stash. Every state
-- that a move leaves is kept under refs/kaged/rewind/. If a file was changed since by somebody else
-- and the move would overwrite it, nothing is done and the files are named.

local caps = kage.request_capabilities({ "session_write", "exec" })
if not caps.session_write then
  kage.notify("rewind: disabled (grant session_write)")
  return
end

local MAX_CHECKPOINTS = 400
local HEADER = "header"      -- stands for a session's header, whose id no fork shares
local BATCH = 200            -- paths in one git command line

local saved = kage.store.get("state")
local state = type(saved) == "table" and saved or {}
state.checkpoints = state.checkpoints or {}   -- { at, commit }, oldest first
state.redo = state.redo or {}                 -- { from, to, commit }, newest last
local pending = nil                           -- what to do with files once the move is made
local complained = false

local function save() kage.store.set("state", state) end

---------------------------------------------------------------------------------------------------
-- git

local index_file = nil

local function git(index, ...)
  local args = { ... }
  local result
  if index then
    table.insert(args, 1, "git")
    table.insert(args, 1, "GIT_INDEX_FILE=" .. index)
    result = kage.exec({ cmd = "env", args = args, timeout_secs = 120 })
  else
    result = kage.exec({ cmd = "git", args = args, timeout_secs = 120 })
  end
  if result.code ~= 0 then
    local words = result.stderr:gsub("%s+$", "")
    error("git " .. tostring(args[index and 3 or 1]) .. ": " .. words, 0)
  end
  if result.truncated then error("too many files changed for one step", 0) end
  return result.stdout
end

local function line(text) return (text:gsub("%s+$", "")) end

local function has_repository()
  if not caps.exec then return false end
  if index_file == nil then
    local ok, path = pcall(git, nil, "rev-parse", "--git-path", "kaged-rewind-index")
    index_file = ok and line(path) or false
  end
  return index_file ~= false
end

-- Keeps all files that git does not ignore, as they are now; gives the commit.
local function snapshot()
  git(index_file, "add", "-A", "--", ".")
  local tree = line(git(index_file, "write-tree"))
  if state.last and state.last.tree == tree then return state.last.commit end
  local commit = line(git(nil, "commit-tree", tree, "-m", "kaged rewind"))
  git(nil, "update-ref", "refs/kaged/rewind/" .. commit, commit)
  state.last = { tree = tree, commit = commit }
  return commit
end

-- What differs from one commit to another: path to { mode, sha }, or false where it is gone.
local function changes(from, to)
  local found = {}
  if from == to then return found end
  local fields = {}
  for field in git(nil, "diff-tree", "-r", "-z", "--no-renames", from, to):gmatch("([^%z]*)%z") do
    fields[#fields + 1] = field
  end
  for i = 1, #fields - 1, 2 do
    local mode, sha = fields[i]:match("^:%d+ (%d+) %x+ (%x+)")
    found[fields[i + 1]] = mode ~= "000000" and { mode = mode, sha = sha } or false
  end
  return found
end

local function same(one, other)
  if not one or not other then return one == other end
  return one.mode == other.mode and one.sha == other.sha
end

-- Works out the files to have after a move to `target`; nil and the paths when somebody's changes
-- stand in the way. Changes elsewhere are kept.
local function plan_files(target, force)
  local now = snapshot()
  local known = state.expected or now
  local wanted, others = changes(known, target), changes(known, now)
  local conflicts = {}
  for path, entry in pairs(wanted) do
    if others[path] ~= nil and not same(others[path], entry) then conflicts[#conflicts + 1] = path end
  end
  if #conflicts > 0 and not force then
    table.sort(conflicts)
    return nil, conflicts
  end
  local scratch = index_file .. "-plan"
  git(scratch, "read-tree", now)
  local args = {}
  local function flush()
    if #args > 0 then git(scratch, "update-index", table.unpack(args)) end
    args = {}
  end
  for path, entry in pairs(wanted) do
    if entry then
      args[#args + 1] = "--add"
      args[#args + 1] = "--cacheinfo"
      args[#args + 1] = entry.mode .. "," .. entry.sha .. "," .. path
    else
      args[#args + 1] = "--force-remove"
      args[#args + 1] = path
    end
    if #args >= BATCH then flush() end
  end
  flush()
  local tree = line(git(scratch, "write-tree"))
  local commit = line(git(nil, "commit-tree", tree, "-m", "kaged rewind"))
  git(nil, "update-ref", "refs/kaged/rewind/" .. commit, commit)
  return { from = now, to = commit, tree = tree }
end

-- Makes the files as planned. Git itself refuses if one of them has changed since the plan.
local function restore(plan)
  git(index_file, "read-tree", "-m", "-u", plan.from, plan.to)
  state.expected = plan.to
  state.last = { tree = plan.tree, commit = plan.to }
end

---------------------------------------------------------------------------------------------------
-- checkpoints

local function anchor(entries, i)
  return i <= 1 and HEADER or entries[i].id
end

local function keep(at)
  local commit = snapshot()
  state.expected = commit
  local list = state.checkpoints
  local last = list[#list]
  if last and last.at == at and last.commit == commit then return save() end
  list[#list + 1] = { at = at, commit = commit }
  while #list > MAX_CHECKPOINTS do table.remove(list, 1) end
  save()
end

-- The files of a point: the newest checkpoint that is not after it on this branch.
local function files_at(entries, i)
  local place = { [HEADER] = 1 }
  for j = 2, i do place[entries[j].id] = j end
  local best, where = nil, 0
  for _, one in ipairs(state.checkpoints) do
    local at = place[one.at]
    if at and at >= where then best, where = one.commit, at end
  end
  return best
end

local function guarded(work)
  return function(...)
    local ok, problem = pcall(work, ...)
    if not ok and not complained then
      complained = true
      kage.notify("rewind: files are not kept: " .. tostring(problem), "warning")
    end
  end
end

kage.on("agent_start", guarded(function()
  pending = nil
  if #state.redo > 0 then
    state.redo = {}
    save()
  end
  if not has_repository() then return end
  local entries = kage.session.entries()
  -- The words that began the run may stand there already, with a title or the like behind them.
  local n = #entries
  for i = #entries, 2, -1 do
    if entries[i].kind == "message" then
      if entries[i].role == "user" then n = i - 1 end
      break
    end
  end
  keep(anchor(entries, n))
end))

kage.on("turn_end", guarded(function()
  if not has_repository() then return end
  local entries = kage.session.entries()
  keep(anchor(entries, #entries))
end))

---------------------------------------------------------------------------------------------------
-- moves

local function current_session()
  for _, one in ipairs(kage.session.list()) do
    if one.current then return one.value end
  end
end

kage.on("session_open", function()
  local plan = pending
  pending = nil
  if plan == nil then return end
  if plan.files then
    local ok, problem = pcall(restore, plan.files)
    if not ok then
      kage.notify("rewind: the conversation moved, the files did not: " .. tostring(problem)
        .. " (they are kept as " .. plan.files.to .. ")", "error")
    end
  end
  if plan.redo then
    plan.redo.to = current_session()
    state.redo[#state.redo + 1] = plan.redo
  else
    table.remove(state.redo)
  end
  save()
end)

local function refused(what, paths)
  local shown = table.concat(paths, ", ", 1, math.min(#paths, 10))
  if #paths > 10 then shown = shown .. ", ..." end
  return {
    is_error = true,
    text = what .. ": changed since by somebody else: " .. shown
      .. ". Nothing was done. Put these files away, or use /" .. what .. " force (they are kept).",
  }
end

local function leave(what, files)
  return {
    files = files, redo = { from = current_session(), commit = files and files.from }, what = what,
  }
end

-- Goes to entry i of the conversation, and takes the files along.
local function go_to(what, entries, i, force)
  pending = nil
  local files, note = nil, ""
  if has_repository() then
    local target = files_at(entries, i)
    if target then
      local conflicts
      files, conflicts = plan_files(target, force)
      if not files then return refused(what, conflicts) end
    else
      note = " Files of that time are not known; they stay."
    end
  end
  pending = leave(what, files)
  kage.session.fork_to(entries[i].id)
  return what .. ": back to " .. entries[i].ts:sub(12, 19) .. "." .. note
end

kage.register_command({
  name = "undo",
  description = "Drop the last exchange and take its changes to files back",
  args = { { name = "how", kind = "choice", choices = { "force" }, optional = true } },
  handler = function(_, _, args)
    local entries = kage.session.entries()
    for i = #entries, 2, -1 do
      if entries[i].role == "user" then return go_to("undo", entries, i - 1, args.how == "force") end
    end
    return { is_error = true, text = "undo: there is nothing to undo" }
  end,
})

kage.register_command({
  name = "redo",
  description = "Take back the last /undo or /rewind",
  args = { { name = "how", kind = "choice", choices = { "force" }, optional = true } },
  handler = function(_, _, args)
    pending = nil
    local top = state.redo[#state.redo]
    if top == nil or top.to ~= current_session() then
      return { is_error = true, text = "redo: there is nothing to redo" }
    end
    local files = nil
    if top.commit and has_repository() then
      local conflicts
      files, conflicts = plan_files(top.commit, args.how == "force")
      if not files then return refused("redo", conflicts) end
    end
    pending = { files = files, what = "redo" }
    kage.session.switch(top.from)
    return "redo: back again."
  end,
})

kage.register_command({
  name = "rewind",
  description = "Choose a point of the conversation and go back to it",
  aliases = { "rewind-to" },
  args = { { name = "entry", kind = "session", optional = true } },
  handler = function(_, _, args)
    local entries = kage.session.entries()
    local chosen = nil
    if args.entry then
      for i = 2, #entries do
        if entries[i].id:sub(1, #args.entry) == args.entry then chosen = chosen or i end
      end
      if not chosen then return { is_error = true, text = "rewind: no entry id starts with " .. args.entry } end
    else
      local items = {}
      for i = 2, #entries do
        if entries[i].kind == "message" then
          items[#items + 1] = { label = entries[i].ts:sub(12, 19) .. "  " .. entries[i].role, value = i, detail = entries[i].id }
        end
      end
      if #items == 0 then return { is_error = true, text = "rewind: there is nothing to go back to" } end
      chosen = kage.ui.select("Rewind to", items)
      if not chosen then return "rewind: cancelled" end
      if not kage.ui.confirm("Rewind", "Go back to " .. entries[chosen].ts:sub(12, 19) .. "?") then
        return "rewind: cancelled"
      end
    end
    return go_to("rewind", entries, chosen, false)
  end,
})
