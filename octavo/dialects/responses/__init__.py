"""OpenAI's Responses API: answers in items, which the server keeps and continues."""
