"""The target service: owns the model whose tokens the client sees, and verifies candidates against it."""
