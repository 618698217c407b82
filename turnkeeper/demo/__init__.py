"""The scenarios: documentation, demo and end-to-end tests at once.

`scenario` is what a YAML file may say, `runner` plays it against a deployment, `compare` holds what came out against
what was recorded, `stand` gives it a throw-away stack, `show` prints it for people.
"""

from turnkeeper.demo.faults import DemoError

__all__ = ["DemoError"]
