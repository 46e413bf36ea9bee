-- note-time: tells the model what day it is, in every request, without storing it.
-- Needs no grant.

kage.on("transform_context", function(messages)
  local note = { type = "text", text = "Today is " .. os.date("%A, %d %B %Y") .. "." }
  table.insert(messages, math.max(#messages, 1), { role = "system", content = { note } })
  return messages
end)
