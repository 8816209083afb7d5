"""Exit with 0 if this container answers 200: `healthcheck.py PORT PATH`.

Imports sockets only, since the engine runs this every 5 s in each container, next to requests with deadlines.
"""

import socket
import sys

TIMEOUT_S = 4

port, path = sys.argv[1:]
with socket.create_connection(("127.0.0.1", int(port)), TIMEOUT_S) as connection:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    sys.exit(b" 200 " not in connection.recv(64))
