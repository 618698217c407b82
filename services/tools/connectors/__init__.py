"""Ways to the world. Each turns what happened into one of four outcomes and never guesses: what was not sent failed,
what may have been sent without an answer is unknown."""
