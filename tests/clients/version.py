"""version.py SOCKET: asks a CRI server for its version by gRPC's C core, as programs in Python, C++ and Ruby do."""

import sys

import grpc

channel = grpc.insecure_channel("unix://" + sys.argv[1])
print(channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=30))
