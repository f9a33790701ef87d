"""GGUF's types whose codes choose points of a codebook: the codebooks, and the decoders."""
