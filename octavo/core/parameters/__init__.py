"""Parts of a request's parameters that have a module of their own."""
