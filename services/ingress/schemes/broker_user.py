"""RabbitMQ's validated `user_id`: the broker has checked that the publisher is who the property says."""

from collections.abc import Sequence

from libs.contracts.ids import is_slug
from services.ingress.schemes.base import Headers, SchemeFault, Verified, body_digest


class BrokerUserVerifier:
    """Believes a message that RabbitMQ accepted from one of `users`. Over HTTP there is no such thing."""

    def __init__(self, users: Sequence[str]) -> None:
        """Raises SchemeFault for a user name that could not be a principal's id."""
        for user in users:
            if not is_slug(user):
                raise SchemeFault("users", f"{user[:64]!r} cannot be a principal: letters, digits, - and _ only")
        self._users = frozenset(users)

    def verify(self, headers: Headers, body: bytes, publisher: str | None) -> Verified | None:
        """The verdict; a message without `user_id` is from nobody."""
        if publisher is None or publisher not in self._users:
            return None
        return Verified(None, None, body_digest(body), principal=publisher)
