"""HTTP in front of an engine: dialects (OpenAI's, with vLLM's fields), admission, metrics."""
