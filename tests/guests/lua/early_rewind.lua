-- Written as scripts of the first generation are: two powers, files restored before the move.
local caps = kage.request_capabilities({ 'session_write', 'exec' })
if not caps.session_write then
  kage.notify('early: disabled (grant session_write)')
  return
end
local checkpoints, undone = {}, {}
local function git(...)
  local ok, r = pcall(kage.exec, { cmd = 'git', args = { ... } })
  if not ok or r.code ~= 0 then return nil end
  return (r.stdout:gsub('%s+$', ''))
end
local function snap()
  if not caps.exec then return nil end
  local sha = git('stash', 'create')
  if sha == '' then sha = git('rev-parse', 'HEAD') end
  return sha
end
kage.on('turn_end', function(e)
  local entries = kage.session.entries()
  checkpoints[#checkpoints + 1] = { id = entries[#entries].id, sha = snap(), time = entries[#entries].ts:sub(12, 19) }
end)
local function restore(at)
  local best
  for _, c in ipairs(checkpoints) do if c.id <= at then best = c end end
  if best and best.sha then git('restore', '--source', best.sha, '--', '.') end
  return best
end
kage.register_command({ name = 'early-undo', aliases = { 'eu' }, description = 'drop the last exchange',
  handler = function(raw, ctx)
    local entries = kage.session.entries()
    for i = #entries, 1, -1 do
      if entries[i].role == 'user' and i > 2 then
        restore(entries[i - 1].id)
        kage.session.fork_to(entries[i - 1].id)
        return 'undone'
      end
    end
    return 'nothing to undo'
  end })
