"""Tests of the routes that vLLM has beside OpenAI's."""
