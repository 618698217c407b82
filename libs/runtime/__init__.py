"""How a process lives: connections, group commit, consuming, sending, health. Knows envelopes, no domain message."""
