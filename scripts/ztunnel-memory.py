#!/usr/bin/env python3
"""Prints the private memory of one ztunnel that serves many idle workloads of a node, as it does for Istio's CNI agent.

  scripts/apart.sh scripts/ztunnel-memory.py ZTUNNEL [WORKLOADS]     needs root, iproute2 and util-linux

ZTUNNEL is a build with the feature `testing`, which contains a certificate authority; bench/suite/data/lab.yaml has the command
that builds it. The bench's mesh `ztunnel` runs one ztunnel beside each workload, but a cluster runs one on each node. This script
acts as the agent: it passes a network namespace for each workload over a Unix socket (ztunnel's proto/zds.proto).
"""

import os
import socket
import subprocess
import sys
import tempfile
import time

HELLO, DONE = b"\x08\x01", b""
SECONDS = 20


def field(number: int, value: bytes) -> bytes:
    """An encoded protobuf field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def added(name: str) -> bytes:
    info = field(1, name.encode()) + field(2, b"lab") + field(3, name.encode())
    return field(1, field(1, f"{name}-uid".encode()) + field(2, info))


def private(pid: int) -> dict[str, int]:
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        lines = [line.split() for line in rollup if line.startswith("Private_")]
    return {line[0].rstrip(":"): int(line[1]) for line in lines}


def namespace(number: int) -> subprocess.Popen:
    """Starts a process in a new network namespace that has an address."""
    script = f"ip link set lo up && ip address add 10.99.0.{number + 1}/32 dev lo && echo && exec sleep infinity"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE)
    holder.stdout.readline()
    return holder


def workload(number: int, name: str) -> str:
    return (
        f"- {{uid: lab//v1/Pod/lab/{name}, name: {name}, namespace: lab, serviceAccount: {name}, "
        f'workloadIps: ["10.99.0.{number + 1}"], protocol: HBONE, trustDomain: cluster.local, node: here, network: "", services: {{}}}}\n'
    )


def measure(program: str, count: int, place: str) -> None:
    names = [f"w{number}" for number in range(count)]
    with open(f"{place}/local.yaml", "w") as file:
        file.write("workloads:\n" + "".join(workload(*one) for one in enumerate(names)))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{place}/agent.sock")
    listener.listen(1)
    listener.settimeout(SECONDS)
    environment = {
        "FAKE_CA": "true",
        "XDS_ADDRESS": "",
        "LOCAL_XDS_PATH": f"{place}/local.yaml",
        "PROXY_MODE": "shared",
        "NODE_NAME": "here",
        "INPOD_UDS": f"{place}/agent.sock",
        "IPV6_ENABLED": "false",
        "ZTUNNEL_WORKER_THREADS": "2",
        "RUST_LOG": "error",
        "PATH": os.environ["PATH"],
    }
    proxy = subprocess.Popen([program], env=environment)
    started = [proxy]
    try:
        channel, _ = listener.accept()
        channel.settimeout(SECONDS)
        assert channel.recv(64) == HELLO, "another version of the protocol"
        for number, name in enumerate(names):
            started.append(namespace(number))
            handed = os.open(f"/proc/{started[-1].pid}/ns/net", os.O_RDONLY)
            socket.send_fds(channel, [added(name)], [handed])
            os.close(handed)
            answer = channel.recv(4096)
            assert answer == field(1, DONE), answer
        channel.send(field(3, DONE))
        time.sleep(SECONDS)
        kib = private(proxy.pid)
        print(f"{count} workloads: {kib['Private_Dirty']} kB dirty, {kib['Private_Clean']} kB clean, {sum(kib.values())} kB private")
    finally:
        for one in started:
            one.kill()
            one.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 50, folder)
