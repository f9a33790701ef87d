"""The forms of requests and answers, a package for each API that clients know."""
