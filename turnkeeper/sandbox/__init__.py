"""The sandbox: a small world of collections, for demos, tests and simulation.

A process of its own with an append-only log that is on disk before any answer, so that what was really done in the
world can be told after any crash of the services. `world.py` has the rules, `log.py` the disk, `app.py` the HTTP.
"""
