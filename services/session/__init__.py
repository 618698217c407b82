"""The session service: decides what happens next in each session, one turn at a time.

Consumes `turnkeeper.session.NN` (doorbells, the door's results, consent's news).
Publishes to `turnkeeper.work` (consent, tools), `turnkeeper.notices` and `turnkeeper.dead`.
Owns in Redis, per session: state, timeline, history, record; per partition: deadline. Trims the inbox of ended
turns and writes the outcome of each input.
"""
