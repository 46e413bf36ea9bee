"""The soak's parts: its guests, the house with the daemon, the clients, the reckoning."""
