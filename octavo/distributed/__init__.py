"""Who the ranks are, and how they share a model."""
