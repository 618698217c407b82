"""How a sender proves who it is: one verifier a source, over the raw bytes, before anything is parsed."""

from services.ingress.schemes.base import Headers, Refusal, SchemeFault, Verified, Verifier, check, header_pairs
from services.ingress.schemes.build import build_verifier

__all__ = [
    "Headers",
    "Refusal",
    "SchemeFault",
    "Verified",
    "Verifier",
    "build_verifier",
    "check",
    "header_pairs",
]
