"""The meaning of sampling: numpy code that other backends must agree with token by token."""
