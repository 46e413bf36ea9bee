"""One module per resource; each route parses, calls one service function and formats."""
