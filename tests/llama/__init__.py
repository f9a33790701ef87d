"""llama.cpp's tests of its own server, run against `octavo serve` (`make test-llama`)."""
