local stamp = os.date('%Y-%m-%d')
kage.on('transform_context', function(messages)
  for _, m in ipairs(messages) do
    assert(type(m) == 'table' and type(m.role) == 'string')
  end
  messages[#messages + 1] = { role = 'user', content = { { type = 'text', text = 'stamp ' .. stamp } } }
  return messages
end)
kage.on('before_provider_request', function(request)
  assert(type(request.messages) == 'table')
end)
