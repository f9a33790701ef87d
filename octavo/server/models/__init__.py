"""Several models behind one address: which are loaded, and which one a request is for."""
