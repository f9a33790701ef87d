"""Each model family against its reference implementation, and what configurations say."""
