"""HTTP in front of an engine: OpenAI's and vLLM's dialect, admission, metrics."""
