kage.request_capabilities({ "session_write" })
kage.register_block_renderer("demo.card", function(block)
  return { { { text = block.text or block.title or "?", bold = true } }, { text = "-", dim = true } }
end)
kage.register_command({
  name = "card", aliases = { "demo-card" }, description = "append a card",
  args = { { name = "title", kind = "text", optional = true, hint = "title" } },
  handler = function(_, _, args)
    local title = args.title or kage.ui.select("Card", { "one", { label = "two", value = 2 } })
    if title == nil then return "dismissed" end
    kage.session.append_entry("demo.card", { title = title })
    return { text = "appended " .. tostring(title) }
  end,
})
local off = kage.register_keybinding({ key = "ctrl+g", description = "card" }, function() return "key" end)
assert(type(off) == "function")
