"""A session's evidence from a deployment: what the door shows of Redis, and what the archive holds beyond it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from libs.contracts.canonical import JSON
from libs.contracts.evidence import Block, Break, Chain, Head, check_chain, check_kept
from turnkeeper.evidence.records import Record, Told, check_links, check_marks, check_records, readable


@dataclass(frozen=True)
class Evidence:
    """All that is known of a session's evidence."""

    chain: Chain
    records: Mapping[str, Record]
    seals: Mapping[str, bool]
    public: Mapping[str, str]
    heads: tuple[Head, ...] = ()
    """From elsewhere: kept by somebody, or in the archive."""
    conflicts: tuple[Break, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    """What the dedupe entries hold, by input, where ingress still knows them."""
    plain: tuple[Head, ...] = ()
    """Kept as number and hash only: there is no signature to check."""

    @property
    def told(self) -> list[Told]:
        """The entries that can be read."""
        return readable(self.chain)


def of_answer(answer: Mapping[str, Any]) -> Evidence:
    """From the door's answer. Raises KeyError, TypeError or ValueError for what is none."""
    chain = Chain(
        session=answer["session"],
        base=answer["base"],
        previous=answer["previous"],
        lines=[line.encode("latin-1") for line in answer["lines"]],
        links=answer["links"],
        heads=answer["heads"],
        sealed=answer["sealed"],
        hash=answer["hash"],
    )
    return Evidence(chain, answer["records"], answer["seals"], answer["keys"])


def with_archive(evidence: Evidence, blocks: Sequence[Block]) -> Evidence:
    """With what the archive holds: its heads, entries that Redis no longer keeps, and where the two disagree."""
    chain, conflicts = evidence.chain, []
    archived: dict[int, tuple[bytes, str]] = {}
    for block in blocks:
        for at, (line, link) in enumerate(zip(block.lines, block.links, strict=False)):
            archived[block.first + at] = (line.encode("latin-1"), link)
    for at, kept in enumerate(chain.lines):
        number = chain.base + at + 1
        if number in archived and archived[number][0] != kept:
            conflicts.append(Break(f"entry {number}", "the archive has another entry here"))
    heads = (*evidence.heads, *(block.head for block in blocks))
    first = chain.base
    while first in archived:
        first -= 1
    if first < chain.base:
        earlier = [archived[number] for number in range(first + 1, chain.base + 1)]
        before = next((block.previous for block in blocks if block.first == first + 1), "")
        chain = replace(
            chain,
            base=first,
            previous=before or (archived[first][1] if first in archived else chain.previous),
            lines=[*(line for line, _ in earlier), *chain.lines],
            links=[*(link for _, link in earlier), *chain.links],
        )
    return replace(evidence, chain=chain, heads=heads, conflicts=tuple(conflicts))


def unjudged_seals(evidence: Evidence) -> dict[str, JSON]:
    """The seals of inputs that the door was not asked about, by input."""
    inputs = (one for one in evidence.told if one.kind == "input")
    return {str(one.get("input")): one.get("seal") for one in inputs if str(one.get("input")) not in evidence.seals}


def verify(evidence: Evidence, now: int) -> list[Break]:
    """Every broken link, the first first: chain, heads, archive, links between entries, live records."""
    told, base = evidence.told, evidence.chain.base
    return [
        *check_chain(evidence.chain, evidence.public, evidence.heads),
        *check_kept(evidence.chain, evidence.plain),
        *evidence.conflicts,
        *check_links(told, evidence.seals, base=base),
        *check_marks(told, evidence.marks),
        *check_records(told, evidence.records, base=base, now=now),
    ]
