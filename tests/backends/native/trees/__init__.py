"""Trees of drafts over the native engine."""
