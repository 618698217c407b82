"""A tool that only knows something: when the sun sets where the friends live."""

import math
from datetime import date

LATITUDE = math.radians(48.14)
LONGITUDE_DEGREES = 11.58
HORIZON = math.radians(-0.833)
"""The sun's upper limb with usual refraction."""


def sunset(day: str) -> dict[str, str]:
    """When the sun sets on a day (`YYYY-MM-DD`), in UTC, within some minutes (the usual sunrise equation)."""
    angle = 2 * math.pi * (date.fromisoformat(day).timetuple().tm_yday - 81) / 365
    declination = math.radians(23.44) * math.sin(angle)
    equation_minutes = 9.87 * math.sin(2 * angle) - 7.53 * math.cos(angle) - 1.5 * math.sin(angle)
    cosine = (math.sin(HORIZON) - math.sin(LATITUDE) * math.sin(declination)) / (
        math.cos(LATITUDE) * math.cos(declination)
    )
    half_day_minutes = math.degrees(math.acos(cosine)) * 4
    minutes = round(720 - 4 * LONGITUDE_DEGREES - equation_minutes + half_day_minutes)
    return {"day": day, "sunset": f"{minutes // 60:02}:{minutes % 60:02}", "zone": "UTC"}
