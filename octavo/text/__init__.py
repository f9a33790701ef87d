"""Text to tokens and back: tokenizers, vocabularies, the detokenizer, stop strings."""
