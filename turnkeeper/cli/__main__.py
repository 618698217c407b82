"""`python -m turnkeeper.cli`."""

from turnkeeper.cli import main

main()
