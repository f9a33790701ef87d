"""The files of SQLite in which a server keeps things."""
