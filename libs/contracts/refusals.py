"""What a tool's own code raises to say that it did nothing: the door believes it, and believes no other exception."""


class Refusal(Exception):
    """The destination's rules say no, and the same call would be refused again. Nothing was done: `refused`."""


class NotDone(Exception):
    """It could not be done now, and provably nothing was done. The operation has `failed`; another call may try."""
