"""The command line of `octavo route`."""
