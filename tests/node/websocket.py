"""A WebSocket whose messages begin with a channel's number, as clients of Kubernetes speak it (`v5.channel.k8s.io` and older)."""
import base64
import hashlib
import os
import socket
import ssl
import struct

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
# Of the channel that v5 closes a direction by: the second byte names which.
END = 255


class Refused(Exception):
    """What the server answered instead of an upgrade."""


class Channels:
    def __init__(self, port, path, protocol, timeout):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket = context.wrap_socket(plain)
        self.buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n").encode())
        head = self._until(b"\r\n\r\n").decode()
        status, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        accepted = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        if " 101 " not in status or headers.get("sec-websocket-accept") != accepted:
            raise Refused(head + self.buffer.decode(errors="replace"))
        self.protocol = headers.get("sec-websocket-protocol")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, channel, data):
        self._frame(BINARY, bytes([channel]) + data)

    def end(self, channel):
        self._frame(BINARY, bytes([END, channel]))

    def messages(self):
        """(channel, bytes) until the server closes."""
        whole = b""
        while True:
            try:
                first, second = self._exactly(2)
            except EOFError:
                return
            size = second & 0x7F
            if size > 125:
                size, = struct.unpack(">H" if size == 126 else ">Q", self._exactly(2 if size == 126 else 8))
            payload, kind = self._exactly(size), first & 0xF
            if kind == CLOSE:
                return
            if kind == PING:
                self._frame(PONG, payload)
            elif kind in (CONTINUED, TEXT, BINARY):
                whole += payload
                if first & 0x80:
                    if whole:
                        yield whole[0], whole[1:]
                    whole = b""

    def _frame(self, kind, payload):
        mask = os.urandom(4)
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack(">H", size)
        masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))
        self.socket.sendall(bytes([0x80 | kind]) + length + mask + masked)

    def _exactly(self, size):
        while len(self.buffer) < size:
            self._more()
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def _until(self, mark):
        while mark not in self.buffer:
            self._more()
        taken, _, self.buffer = self.buffer.partition(mark)
        return taken

    def _more(self):
        more = self.socket.recv(1 << 16)
        if not more:
            raise EOFError
        self.buffer += more
