"""Tests of the routes that answer questions with the probabilities of labels."""
