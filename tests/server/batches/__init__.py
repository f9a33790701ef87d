"""Tests of batches: files of requests, the routes about them, and `octavo batch`."""
