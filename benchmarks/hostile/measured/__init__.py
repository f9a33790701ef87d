"""A command that measures servers, whose servers and traces are hostile."""
