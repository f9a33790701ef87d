"""The Vulkan probe of benchmarks/vulkan against the torch backend, which defines the meaning."""
