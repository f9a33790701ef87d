"""Makes a quantised checkpoint from a float one: `octavo quantize`."""
