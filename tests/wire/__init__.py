"""The wire, the engine's process, and what is done when it dies."""
