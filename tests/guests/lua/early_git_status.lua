kage.on('agent_start', function()
  local ok, head = pcall(kage.fs.read, '.git/HEAD')
  if not ok then kage.notify('no repository', 'warn') return end
  kage.notify('on ' .. (head:match('ref: refs/heads/(%S+)') or head:sub(1, 8)))
end)
