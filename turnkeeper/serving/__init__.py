"""A planner or a tool of one's own, served from five lines: `planner` and `tool` wrap a function, `serve` gives it an
address that the application file names (docs/client.md)."""

from turnkeeper.serving.http import asgi, serve
from turnkeeper.serving.planners import Plan, Planner, View, planner
from turnkeeper.serving.tools import Tool, tool

__all__ = ["Plan", "Planner", "Tool", "View", "asgi", "planner", "serve", "tool"]
