#!/usr/bin/env bash
# Sends traffic of every kind through a leno-proxy that counts what it executes, for scripts/profile.sh (as root; takes three
# minutes):
#
#   scripts/profile-train.sh PROGRAMS     PROGRAMS is the folder with that leno-proxy and the other programs of a release
#
# A process writes its counters when it exits normally, as it does after `leno down` and at the end of a bench. Landlock
# would forbid a proxy to write files, so the proxies run as on a kernel without Landlock.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$(realpath "$1")
# Workloads find their commands in PATH.
export PATH=$programs:$PATH
work=$(mktemp -d)
mesh=train-$$
finish() {
  [ $? = 0 ] || cat "$work/log" >&2
  "$programs/leno" down --name "$mesh" --now >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

quietly() { # what, command...
  echo "profile: $1" >&2
  "${@:2}" >"$work/log" 2>&1
}
bench() { # what, arguments of leno-bench...
  quietly "$1" scripts/without-landlock.py "$programs/leno-bench" "${@:2}" --rounds 1 --out "$work/records"
  rm -r "$work/records"
}
of_client() { "$programs/leno" exec --name "$mesh" -n train client -- "$@"; }
# leno-load exits with 1 if a request has failed. Some requests fail on purpose, by policy.
load() { of_client leno-load --duration 2s --rate 500 --connections 8 "$@" || [ $? = 1 ]; }

bench "one hop in plaintext" http --proxies leno --seconds 2 --rate 400
bench "two hops with mTLS" mesh --proxies leno --seconds 2 --rate 500
bench "observed requests" mesh --proxies leno-access-log,leno-traces-100,leno-tap --seconds 2 --rate 500 --scenarios keepalive-1k
bench "processes of several workloads" run connections stream --mesh leno-node,leno-shared --duration 2s

quietly "routes, policies, tokens, retries" scripts/without-landlock.py "$programs/leno" up --wait --name "$mesh" scripts/profile-train.yaml
token=eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6InRyYWluIn0.eyJpc3MiOiJodHRwczovL3RyYWluLmV4YW1wbGUiLCJhdWQiOiJ3ZWIiLCJzdWIiOiJ0cmFpbiIsImdyb3VwcyI6WyJ0cmFpbmVycyJdLCJpYXQiOjE3MDAwMDAwMDAsImV4cCI6NDEwMjQ0NDgwMH0.5IRWDogqDoai9YO-_IZejDPFT9inSKPBhczmwIbWCYvVWRwy_tZWBnrIkbJJb_dYX8rKQbO6sjfS9wuxNuTikg
traffic() {
  load --url http://web/
  load --url http://web/ --header 'x-user: a' --new-connection
  load --url http://web/forbidden
  load --url http://web/users --header "authorization: Bearer $token"
  load --url http://web/users --header "authorization: Bearer $token" --method POST --body-size 20000
  load --url http://routed/api/v1 --header 'x-version: next' --header "authorization: Bearer $token"
  load --url http://routed/mirrored
  load --url http://routed/moved
  load --url 'http://detected/?size=2000&chunked=4&trailers=1'
  load --url http://flaky/
  of_client python3 - <<'END'
import socket, time

client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(("datagrams", 7000))
client.settimeout(0.2)
answered = 0
for number in range(2000):
    client.send(number.to_bytes(2, "big") * 100)
    try:
        client.recv(2048)
        answered += 1
    except TimeoutError:
        pass
assert answered > 1000, answered
for _ in range(200):
    with socket.create_connection(("banner", 2525)) as greeted:
        greeted.recv(100)
        greeted.sendall(b"x" * 5000)
        greeted.recv(100)
END
}
quietly "the same under load" traffic
quietly "the end of the mesh" "$programs/leno" down --name "$mesh"
