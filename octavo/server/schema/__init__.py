"""What crosses the wire, as structs: at once schema, validation, bounds and format."""
