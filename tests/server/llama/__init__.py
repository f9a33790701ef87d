"""Tests of llama.cpp's dialect."""
