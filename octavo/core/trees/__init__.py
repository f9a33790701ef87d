"""The form of drafts that are a tree: which follows which, and how it is cut into chains."""
