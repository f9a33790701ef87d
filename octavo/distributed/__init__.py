"""The ranks that share a model, and the exchange of results between them."""
