"""The strict reader of bodies, where ingress looks for it."""

from libs.contracts.strict_json import MAX_DEPTH as MAX_DEPTH
from libs.contracts.strict_json import Malformed as Malformed
from libs.contracts.strict_json import parse as parse
