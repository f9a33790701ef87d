"""A model's forward pass recorded as a listing, and the passes that rewrite it for a backend."""
