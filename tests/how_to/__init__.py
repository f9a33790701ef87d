"""The pages of docs/how-to, followed literally."""
