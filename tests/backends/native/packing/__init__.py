"""Tests of how weights of single formats become panels."""
