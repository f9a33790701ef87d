"""Settings, each declared once: default, bounds, flag and help; what others call them."""

DEFAULT_MODEL = "smollm2"  # an alias of octavo/loader/pinned.py
