"""What goes wrong in a demo."""


class DemoError(Exception):
    """A scenario could not be played, or came out differently. The first line says what; others give details."""
