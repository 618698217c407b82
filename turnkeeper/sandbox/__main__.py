"""`python -m turnkeeper.sandbox --config turnkeeper.yaml --log FILE --host 127.0.0.1 --port N`."""

import argparse
import sys
from pathlib import Path

import uvicorn

from libs.contracts.application import ApplicationError, load_application
from turnkeeper.sandbox.app import build
from turnkeeper.sandbox.log import LogError

GRACE_SECONDS = 3
"""For calls that are open when it is asked to end; one that is held would be open for ever."""


def main() -> int:
    """Serve the collections of the application's `sandbox` part until ended. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m turnkeeper.sandbox", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the application file")
    parser.add_argument("--log", type=Path, required=True, help="the effect log, made if it is not there")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    try:
        app = build(load_application(given.config).sandbox, given.log)
    except (ApplicationError, LogError) as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 2
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning", access_log=False,
                timeout_graceful_shutdown=GRACE_SECONDS)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
