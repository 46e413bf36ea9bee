-- Written as scripts of the newest generation are: asks for context, off functions, requires.
kage.requires({ api = 2 })
local caps = kage.request_capabilities({ "context" })
local off
local total = 0
off = kage.on("message_end", function(ev)
  total = total + ((ev.usage and ev.usage.output) or 0)
end)
kage.on("agent_end", function(ev)
  kage.ui.notify(("late: %d tokens, ok=%s"):format(total, tostring(ev.ok)), "info")
  off()
end)
