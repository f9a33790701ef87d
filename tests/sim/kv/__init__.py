"""The oracle's KV memory, by kind, and pools that refuse."""
