"""The gRPC interface: a dialect whose messages are octavo.proto's; grpcio serves it."""
