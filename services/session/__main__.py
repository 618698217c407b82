"""`python -m services.session`."""

from services.session.main import main

if __name__ == "__main__":
    main()
