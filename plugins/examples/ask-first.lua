-- ask-first: asks before the conversation moves to another session or branch.
-- Needs no grant. When nobody can be asked, the answer is no.

kage.on("session_before_switch", function(target)
  if not kage.ui.confirm("Move", "Go to " .. (target ~= "" and target or "a new branch") .. "?") then
    return { cancel = "not confirmed" }
  end
end)

kage.register_command({
  name = "branches",
  description = "List the sessions of this project",
  handler = function()
    local lines = {}
    for _, one in ipairs(kage.session.list()) do
      lines[#lines + 1] = (one.current and "* " or "  ") .. one.id
    end
    return table.concat(lines, "\n")
  end,
})
