"""GGUF files: a reader that checks every offset, size and string."""
