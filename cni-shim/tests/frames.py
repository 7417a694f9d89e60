"""Sends Ethernet frames by eth0, each with its name at its end, or says which names arrive.

frames.py send OWN_MAC OWN_IP4 OWN_IP6     every frame below, "end" last
frames.py hear                             prints "ready", then the names that arrived before "end", a line each
"""
import socket
import struct
import sys

EVERYBODY = b"\xff" * 6
STRANGER = bytes.fromhex("0a5812345678")
GATEWAY4, GATEWAY6 = "10.77.0.1", "fd77::1"
NAMED = b"frame:"


def ip4(text):
    return socket.inet_pton(socket.AF_INET, text)


def ip6(text):
    return socket.inet_pton(socket.AF_INET6, text)


def ether(source, kind, body):
    return EVERYBODY + source + struct.pack("!H", kind) + body


def arp(hardware, address, name):
    head = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
    return head + hardware + ip4(address) + EVERYBODY + ip4("10.77.0.255") + name


def udp(name):
    return struct.pack("!HHHH", 9, 9, 8 + len(name), 0) + name


def packet4(source, name):
    body = udp(name)
    fixed = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(body), 1, 0, 64, 17)
    ends = ip4(source) + ip4("10.77.0.255")
    total = sum(struct.unpack("!9H", fixed + ends))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return fixed + struct.pack("!H", total ^ 0xFFFF) + ends + body


def packet6(source, kind, body):
    return struct.pack("!IHBB", 6 << 28, len(body), kind, 255) + ip6(source) + ip6("ff02::1") + body


def icmp6(source, kind, body, name):
    return packet6(source, 58, struct.pack("!BBH", kind, 0, 0) + body + name)


def neighbour(target):
    return struct.pack("!I", 0x20000000) + ip6(target)


def frames(mac, own4, own6):
    """Pairs of a name and what makes the frame that bears it."""
    router = struct.pack("!BBHII", 64, 0, 1800, 0, 0)
    elsewhere = struct.pack("!I", 0) + ip6(own6) + ip6(GATEWAY6)
    return [
        ("own-ip", lambda n: ether(mac, 0x0800, packet4(own4, n))),
        ("own-arp", lambda n: ether(mac, 0x0806, arp(mac, own4, n))),
        ("own-ip6", lambda n: ether(mac, 0x86DD, packet6(own6, 17, udp(n)))),
        ("own-neighbour", lambda n: ether(mac, 0x86DD, icmp6(own6, 136, neighbour(own6), n))),
        ("unspecified-solicitation", lambda n: ether(mac, 0x86DD, icmp6("::", 135, neighbour(own6), n))),
        ("gateways-arp", lambda n: ether(mac, 0x0806, arp(mac, GATEWAY4, n))),
        ("arp-for-a-stranger", lambda n: ether(mac, 0x0806, arp(STRANGER, own4, n))),
        ("strangers-mac", lambda n: ether(STRANGER, 0x0800, packet4(own4, n))),
        ("strangers-ip", lambda n: ether(mac, 0x0800, packet4("10.77.0.99", n))),
        ("gateways-ip6", lambda n: ether(mac, 0x86DD, packet6(GATEWAY6, 17, udp(n)))),
        ("gateways-neighbour", lambda n: ether(mac, 0x86DD, icmp6(own6, 136, neighbour(GATEWAY6), n))),
        ("router", lambda n: ether(mac, 0x86DD, icmp6(own6, 134, router, n))),
        ("redirect", lambda n: ether(mac, 0x86DD, icmp6(own6, 137, elsewhere, n))),
        ("tagged", lambda n: ether(mac, 0x8100, struct.pack("!HH", 5, 0x0800) + packet4(own4, n))),
        ("another-protocol", lambda n: ether(mac, 0x88B5, n + b"\0" * 46)),
        ("end", lambda n: ether(mac, 0x0800, packet4(own4, n))),
    ]


line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
line.bind(("eth0", 0))
if sys.argv[1] == "send":
    for name, made in frames(bytes.fromhex(sys.argv[2].replace(":", "")), sys.argv[3], sys.argv[4]):
        line.send(made(NAMED + name.encode() + b";"))
else:
    line.settimeout(20)
    print("ready", flush=True)
    name = ""
    while name != "end":
        _, found, rest = line.recv(2000).partition(NAMED)
        if found:
            name = rest.partition(b";")[0].decode()
            print(name, flush=True)
