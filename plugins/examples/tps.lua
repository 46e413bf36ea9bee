-- tps: how fast the model speaks. Shows tokens per second when a run has ended.
-- Needs no grant. With `[lua] strict_context = true` it needs `context`.

kage.request_capabilities({ "context" })

local started, tokens = nil, 0

kage.on("agent_start", function()
  started, tokens = kage.now_ms(), 0
end)

kage.on("message_end", function(event)
  local usage = event.usage
  if usage and usage.output then tokens = tokens + usage.output end
end)

kage.on("agent_end", function()
  if not started or tokens == 0 then return end
  local seconds = math.max(kage.now_ms() - started, 1) / 1000
  kage.notify(string.format("%d tokens in %.1f s (%.1f per second)", tokens, seconds, tokens / seconds))
  started = nil
end)
