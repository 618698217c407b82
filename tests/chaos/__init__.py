"""Load on the real stack while its processes and servers are killed. `make chaos`."""
