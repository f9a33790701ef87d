"""The server: its routes, its pages, its beginning and its end; all else is in rooms below."""
