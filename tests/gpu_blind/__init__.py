"""The kernels of the CUDA backend, examined on machines without a card."""
