"""Tests of what measures: engines from inside, and servers from outside."""
