"""Batches: files of requests, answered line by line beside clients' requests, or offline."""
