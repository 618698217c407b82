"""`python -m services.ingress`."""

from services.ingress.main import main

main()
