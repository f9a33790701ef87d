"""Chat conversations as prompts: messages, and the templates that come with models."""
