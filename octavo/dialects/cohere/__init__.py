"""Cohere's dialect: /v2/chat and /v2/embed."""
