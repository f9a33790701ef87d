"""The nodes of an engine: other machines, each of which runs some of its stages."""
