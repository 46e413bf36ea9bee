"""Hook payloads: `base`, `calls`, and, loaded when a hook needs them, `identity`, `messages`."""
