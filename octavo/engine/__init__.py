"""The engine's process: builds the core, the executor and the runner of a model, and runs them."""
