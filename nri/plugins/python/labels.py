#!/usr/bin/env python3
"""An NRI plugin in Python, with the standard library only. docs/wire.md explains its bytes.

    labels.py SOCKET      connects to the socket of a runtime, as 10-labels
    10-labels             in a plugin directory: the runtime launches it with name, index and socket

It gives each container the variable POD and the annotation example/pod, and refuses those of pods with the
annotation example/refuse.
"""
import os
import socket
import struct
import sys

PLUGIN, RUNTIME = 1, 2  # connections in the mux: the runtime calls the plugin, the plugin calls the runtime
REQUEST, RESPONSE = 1, 2  # types of a ttrpc message
UNKNOWN, UNIMPLEMENTED = 2, 12  # gRPC codes
CREATE_CONTAINER = 4  # the number of the event


# Protobuf: a message is bytes, and its fields are (number, value) pairs.
def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message):
    at = 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            byte = message[at]
            at += 1
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    while at < len(message):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
            continue
        length = number() if kind == 2 else {1: 8, 5: 4}[kind]
        yield key >> 3, message[at : at + length]
        at += length


def get(message, number, default=b""):
    return dict(fields(message)).get(number, default)


def get_map(message, number):
    entries = (entry for n, entry in fields(message) if n == number)
    return {get(entry, 1).decode(): get(entry, 2).decode() for entry in entries}


# What the plugin does: one method per call, from the payload of the request to that of the answer.
class Refused(Exception):
    pass


def configure(request):
    return field(2, 1 << (CREATE_CONTAINER - 1))


def synchronize(request):
    return field(2, get(request, 3, 0))  # a list in parts: `more` is answered with `more`


def create_container(request):
    pod = get(request, 1)
    name = get(pod, 2).decode()
    if "example/refuse" in get_map(pod, 6):
        raise Refused(f"pod {name} has the annotation example/refuse")
    annotation = field(2, field(1, "example/pod") + field(2, name))
    variable = field(4, field(1, "POD") + field(2, name))
    return field(1, annotation + variable)


METHODS = {
    "Configure": configure,
    "Synchronize": synchronize,
    "CreateContainer": create_container,
    "Shutdown": lambda request: b"",
}


# The socket: frames of the mux, with ttrpc messages in them.
class Trunk:
    def __init__(self, sock):
        self.sock = sock
        self.unread = {PLUGIN: b"", RUNTIME: b""}

    def read(self, length):
        data = b""
        while len(data) < length:
            piece = self.sock.recv(length - len(data))
            if not piece:
                sys.exit("labels: the runtime has closed the connection")
            data += piece
        return data

    def send(self, connection, stream, kind, body):
        message = struct.pack(">IIBB", len(body), stream, kind, 0) + body
        for at in range(0, len(message), 4096):
            piece = message[at : at + 4096]
            self.sock.sendall(struct.pack(">II", connection, len(piece)) + piece)

    def messages(self):
        while True:
            connection, length = struct.unpack(">II", self.read(8))
            data = self.unread.get(connection, b"") + self.read(length)
            while len(data) >= 10:
                length, stream, kind, _ = struct.unpack(">IIBB", data[:10])
                if len(data) < 10 + length:
                    break
                yield connection, stream, kind, data[10 : 10 + length]
                data = data[10 + length :]
            self.unread[connection] = data


def answer(request):
    method = get(request, 2).decode()
    if method not in METHODS:
        return field(1, field(1, UNIMPLEMENTED) + field(2, f"no method {method}"))
    try:
        return field(2, METHODS[method](get(request, 3)))
    except Refused as why:
        return field(1, field(1, UNKNOWN) + field(2, str(why)))


def main():
    launched = os.environ.get("NRI_PLUGIN_SOCKET")
    if launched:
        sock = socket.socket(fileno=int(launched))
    elif len(sys.argv) == 2:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(sys.argv[1])
    else:
        sys.exit(__doc__)
    trunk = Trunk(sock)
    register = field(1, os.environ.get("NRI_PLUGIN_NAME", "labels")) + field(2, os.environ.get("NRI_PLUGIN_IDX", "10"))
    call = field(1, "nri.pkg.api.v1alpha1.Runtime") + field(2, "RegisterPlugin") + field(3, register)
    trunk.send(RUNTIME, 1, REQUEST, call)
    for connection, stream, kind, body in trunk.messages():
        if (connection, kind) == (PLUGIN, REQUEST):
            trunk.send(PLUGIN, stream, RESPONSE, answer(body))
        elif connection == RUNTIME and get(get(body, 1), 1, 0):
            sys.exit(f"labels: RegisterPlugin: {get(get(body, 1), 2).decode()}")


main()
