"""What each model family is, and how a checkpoint becomes one, bound to a backend."""
