"""Tests of the commands about the command line itself."""
