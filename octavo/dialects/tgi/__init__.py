"""The dialect of text-generation-inference (TGI), which Hugging Face's clients speak."""
