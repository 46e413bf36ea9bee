"""Language models: aliases, turns and their events, vendors, the scripted model."""
