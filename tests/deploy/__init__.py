"""What `deploy/` holds: made from the catalogue of metrics, checked, and run where it can be."""
