"""What `octavo run` consists of: one answer, or a conversation with an engine or a server."""
