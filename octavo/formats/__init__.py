"""The formats in which models write tool calls and reasoning, and the deltas read from them."""
