"""Presents a GGUF file as what models know: a config.json and tensors by Hugging Face names."""
