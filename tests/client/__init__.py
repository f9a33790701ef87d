"""Tests of clients, of the journal, and of engines that die."""
