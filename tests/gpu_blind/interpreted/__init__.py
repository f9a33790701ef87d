"""The kernels in Triton's interpreter, whose types are repaired and whose accesses are watched."""
