"""Judging a session's evidence: `records` holds live records against it, `story` follows one effect back to its bytes,
`archive` reads the stream, `source` fetches from a deployment. Nothing here believes a service's own judgement but
one: whether a seal is ours, which only who holds the seal keys can say."""
