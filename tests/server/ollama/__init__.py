"""Tests of Ollama's dialect."""
