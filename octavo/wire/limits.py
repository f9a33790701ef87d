"""The limits of messages between processes."""

MAX_FRAME_BYTES = 64 << 20
