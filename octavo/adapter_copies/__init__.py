"""Private copies of adapters' files, named by their content, from which engines load them."""
