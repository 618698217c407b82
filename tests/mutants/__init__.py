"""Patches that break one rule each, and what must go red."""
