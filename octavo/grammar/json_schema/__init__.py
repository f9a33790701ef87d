"""JSON schemas, simplified to what the grammar engine enforces as the standard says."""
