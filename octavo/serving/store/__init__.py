"""What is kept between requests: files of SQLite, and responses, in memory or in such a file."""
