"""Ingress: verifies what comes from outside and gives it a numbered, sealed place in its session's inbox.

Consumes   events that users publish (`turnkeeper.events.in`), `ingress.register_subject.v1`, `ingress.set_timer.v1` and
           `ingress.stop_timer.v1` (`turnkeeper.ingress`), and HTTP: senders' events, users' messages, operators' calls.
Publishes  `ingress.input_accepted.v1` and `ingress.timer_skipped.v1` to the session's partition, a notice to operators
           when two sessions claim one subject, and dead letters.
Owns       in Redis: dedupe, event, admitted, quarantine, quarantineindex (`{iNN}`); subject, held, heldindex (`{sNN}`);
           owner, trial, sessions, waiting, waitingindex, timer, timers, pendingtimers, and with consent number, inbox,
           outcome (`{pNN}`).
"""
