"""A device that is no card, and behaves like one to the program: for tests and rehearsals."""
