"""Turnkeeper."""
