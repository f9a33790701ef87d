"""The bodies of requests and responses as structs, with their types, bounds and defaults."""
