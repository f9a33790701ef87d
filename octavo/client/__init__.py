"""The connection to an engine, in this process or in its own, and the journal of its requests."""
