"""Measurements: how fast the real services are, beside a bare chain of the same hops on the same servers."""
