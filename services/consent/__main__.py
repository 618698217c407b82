"""`python -m services.consent`."""

from services.consent.main import main

main()
