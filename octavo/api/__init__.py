"""The Python API: `LLM` and `AsyncLLM`, their prompts, requests and outputs."""
