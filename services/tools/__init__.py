"""The door: the only way to a side effect (design §3.4).

Consumes `tools.run_step` and `tools.withdraw_operation` from `turnkeeper.tools`; publishes `tools.step_finished` to the
session's partition, `ingress.register_subject` to ingress and notices of topic `operation`. Owns in Redis, in the
session's partition: operation, operations, lease, unknown, trim, binding; spends the steps of an action, which is
consent's, in the script that claims.

Read `handlers` → `domain` → `store` → `connectors`: authority → tool → arguments → permission → identity → one script
(known key, bindings, grant, claim) → run → record → answer.
"""
