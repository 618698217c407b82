"""What crosses a process boundary: messages, identities, keys and topology. No I/O and no client library."""
