"""What is kept of answers between requests: responses, in memory or in a file."""
