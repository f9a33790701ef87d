"""What carries requests and answers, and the errors that clients receive."""
