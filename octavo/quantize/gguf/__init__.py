"""Quantises GGUF files of floats to GGUF's own types: `octavo quantize FILE.gguf --to q4_k`."""
