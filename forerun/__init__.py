"""Speculative decoding served by three gRPC services: what all of them must agree on."""

__version__ = "0.1.0"
