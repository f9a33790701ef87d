"""Ollama's dialect: /api/generate, /api/chat and what its clients ask of a server."""
