"""What several dialects share: OpenAI's forms, which most APIs extend, and parts of writers."""
