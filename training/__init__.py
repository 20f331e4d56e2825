"""Distils a small draft model from a target: a tool beside the services, imported by none of them."""
