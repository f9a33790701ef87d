"""Regular languages: of regexes, their intersections and opposites, and back to regexes."""
