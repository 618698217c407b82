"""The container's health check: ends 0 when the process in it answers /readyz with 200, else prints why not.

Usage: healthcheck.py [PATH]. `/livez` instead of the default asks only whether the process answers at all.
"""

import http.client
import os
import sys

port = int(os.environ["TURNKEEPER_HTTP_PORT"])
path = sys.argv[1] if len(sys.argv) > 1 else "/readyz"
try:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=4)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read(2000).decode(errors="replace")
except OSError as error:
    sys.exit(f"nothing answers on port {port}: {error}")
print(answer.status, text)
sys.exit(answer.status != 200)
