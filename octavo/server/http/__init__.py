"""HTTP: connections, routing, keys, limits, event streams and errors."""
