"""A limit of deliveries a second for each source, in this replica."""

from services.ingress.ports import Clock


class Rates:
    """Token buckets. `per_second` 0 means no limit; `burst` is how many may come at once after a pause."""

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, int]] = {}

    def wait_seconds(self, source: str) -> float:
        """0.0 when one more may pass now (and is counted), else the seconds until it may."""
        if self._per_second == 0:
            return 0.0
        now = self._clock.now_ms()
        level, at = self._buckets.get(source, (self._burst, now))
        level = min(self._burst, level + max(0, now - at) / 1000 * self._per_second)
        if level < 1:
            self._buckets[source] = (level, now)
            return (1 - level) / self._per_second
        self._buckets[source] = (level - 1, now)
        return 0.0
