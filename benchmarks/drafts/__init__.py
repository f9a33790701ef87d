"""What drafts are measured with: prompts, and drafts that are right at a given rate."""
