"""The rules of the source tree, each a small function tested on planted offences."""
