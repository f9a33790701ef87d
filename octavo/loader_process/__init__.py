"""The loader process, which reads tensor files for an engine that can open none."""
