"""The simulator: seeded worlds that try to break the core, and an executor that notices."""
