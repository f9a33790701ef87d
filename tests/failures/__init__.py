"""The commonest failures, made on purpose, and the page that lists what each prints."""
