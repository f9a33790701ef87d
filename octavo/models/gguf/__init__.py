"""GGUF files in the form that families know: a config.json and Hugging Face tensor names."""
