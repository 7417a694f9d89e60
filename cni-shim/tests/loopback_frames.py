"""Sends by eth0 UDP datagrams to port 9999 of addresses that nobody would route there.

loopback_frames.py TO_MAC FROM_IP6 TO_IP6...     each says "to " and its address
"""
import socket
import struct
import sys


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(to_mac, own_mac, source, target):
    body = b"to " + target.encode()
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
    length = 8 + len(body)
    head = struct.pack("!HHH", 9, 9999, length)
    sum_ = checksum(ends + struct.pack("!II", length, 17) + head + b"\0\0" + body)
    packet = struct.pack("!IHBB", 6 << 28, length, 17, 64) + ends
    return to_mac + own_mac + b"\x86\xdd" + packet + head + struct.pack("!H", sum_) + body


to_mac = bytes.fromhex(sys.argv[1].replace(":", ""))
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
own_mac = link.getsockname()[4]
for target in sys.argv[3:]:
    link.send(frame(to_mac, own_mac, sys.argv[2], target))
