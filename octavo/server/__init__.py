"""The server: its routes, its pages, its start and its end. Lower packages have the rest."""
