"""Tests of grammars: their masks, and what is made of the shapes that clients describe."""
