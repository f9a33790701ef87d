"""Tests of speculation: proposers, the share of a step that drafts get, and equal texts."""
