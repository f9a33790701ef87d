"""The stages of an engine: further processes that compute some layers of each step."""
