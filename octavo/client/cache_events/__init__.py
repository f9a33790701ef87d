"""Publishes what engines have in their prefix caches, in the form of vLLM's KV events."""
