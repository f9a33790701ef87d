"""The second model, which drafts: its files, its tokens, its place beside the first."""
