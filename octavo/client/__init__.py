"""Clients of an engine, in this process or in a process of its own, and the journal."""
