"""The protocol between the front end's process and the engine's: messages, codec, sockets."""
