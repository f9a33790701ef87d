"""DFlash: files of drafters, their published forward pass, and the tests of both."""
