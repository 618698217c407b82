"""`python -m services.tools`."""

from services.tools.main import main

main()
