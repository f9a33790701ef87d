"""The console: one page for browsers, of the model and of the server, made of the files here."""
