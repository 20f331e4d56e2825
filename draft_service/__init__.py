"""The draft service: proposes tokens ahead of the target."""
