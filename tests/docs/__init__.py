"""The documentation as a site, and what its pages promise."""
