"""Embeddings, scores and classes over HTTP, in the shapes of OpenAI, vLLM, Jina and Cohere."""
