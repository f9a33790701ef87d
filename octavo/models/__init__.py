"""Model families, and the loading of checkpoints into models that are bound to a backend."""
