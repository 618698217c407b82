"""The door: the only way to a side effect (design §3.4).

Consumes `tools.run_step`, `tools.withdraw_operation` and `tools.look_up_operation` from `turnkeeper.tools`; publishes
`tools.step_finished` and `tools.looked_up` to the session's partition, `ingress.register_subject`,
`ingress.set_timer` and `ingress.stop_timer` to ingress, notices of topic `operation` and `evidence`, and
`tools.evidence_sealed` to the archive. Owns in Redis, in the session's partition: operation, operations, lease,
unknown, lookup, trim, binding, faultcount, pauses, parked, parkedorder, parkedends, and of the evidence that every
service tells: chain, links, heads; spends the steps of an action, which is consent's, in the script that claims. In
the user's shard: standinguse, and the uses of a standing approval (standing), which is consent's too. Reads the mark
of a trial, ingress's, in the script that counts its calls. For all partitions: pauselist, pauseseen.

Read `handlers` → `domain` → `store` → `connectors`: authority → tool → arguments → permission → identity → one script
(known key, bindings, grant, claim) → run → record → answer.
"""
