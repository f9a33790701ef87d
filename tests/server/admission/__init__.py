"""The admission of requests: the queue, and the keys that share an engine."""
