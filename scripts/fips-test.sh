#!/usr/bin/env bash
# Builds the programs with the FIPS module of aws-lc, and tests a mesh of `leno up --tls-profile fips` with them:
# two real proxies in both modes, and OpenSSL as a peer that offers unapproved algorithms.
#
#   scripts/apart.sh scripts/fips-test.sh     needs root, cmake, Go, perl, Python, curl and openssl
#
# Compiling the module takes minutes. The programs have the debug profile, and are in fips/ of the target
# directory.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
programs=$target/fips
place=$(mktemp -d /tmp/fips.XXXXXX)
chmod 755 "$place"
name=fips-$$
end() {
  local code=$?
  [ ! -x "$programs/leno" ] || "$programs/leno" down --name "$name" >/dev/null 2>&1 || true
  rm -rf "$place"
  exit "$code"
}
trap end EXIT
fail() {
  echo "fips-test: $*" >&2
  exit 1
}

build() { # features
  "${CARGO:-cargo}" build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-testkit \
    --bin leno --bin leno-proxy --bin leno-broker --bin leno-controller --bin leno-peer "$@"
}
begin=$SECONDS
# The module is built from its own sources, not replaced by a library of the machine.
AWS_LC_FIPS_SYS_USE_SYSTEM=0 build --features leno/fips,leno-proxy/fips,leno-controller/fips
echo "built with the module in $((SECONDS - begin)) s"
rm -rf "$programs"
mkdir "$programs"
cp "$target"/debug/{leno,leno-proxy,leno-broker,leno-controller,leno-peer} "$programs"
# Other tests must find programs without the module in the target directory.
build

for program in leno-proxy leno-controller; do
  case $program in
    leno-proxy) arguments=(--static /dev/null) ;;
    leno-controller) arguments=(--files /dev/null --ca-dir "$place/ca" --listen 127.0.0.1:0) ;;
  esac
  code=0
  said=$("$target/debug/$program" --tls-profile fips "${arguments[@]}" 2>&1) || code=$?
  [[ $code = 64 && $said == *"make release FIPS=1"* ]] || fail "$program without the module: $code, $said"
done

cat >"$place/mesh.yaml" <<END
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab, labels: {app: cart}}
spec:
  serviceAccount: cart
  command: [$programs/leno-peer, http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
END
# A ServerHello whose key share is X25519MLKEM768: 0x11ec, of 1120 bytes.
cat >"$place/hybrid.py" <<'END'
import socket
import sys

link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.settimeout(120)
open(sys.argv[1], "w").close()
while b"\x00\x33\x04\x64\x11\xec\x04\x60" not in link.recv(65535):
    pass
END
run() { "$programs/leno" exec --name "$name" -n lab "$@"; }
pages() { run "$1" -- curl -sf http://127.0.0.1:15020/metrics; }
# Prints what a client that is no proxy sees of a handshake: the suite that the proxy accepts, or its alert.
hello() { # options of openssl
  # shellcheck disable=SC2016
  run plain -- sh -c 'openssl s_client -connect cart-0.cart:8080 -alpn leno-h2 -tls1_3 "$@" </dev/null 2>&1 || true' sh "$@"
}

follows() { # mode
  local said choice
  "$programs/leno" up --name "$name" --mode "$1" --mtls strict --tls-profile fips --wait --wait-timeout 180s "$place/mesh.yaml"
  ip netns exec "leno-$name" python3 "$place/hybrid.py" "$place/listens" &
  local listens=$!
  until [ -e "$place/listens" ]; do sleep 0.1; done
  run web -- curl -sf -o /dev/null -m 60 http://cart:8080/ || fail "$1: no answer"
  wait "$listens" || fail "$1: no key exchange by X25519MLKEM768"
  rm "$place/listens"

  for workload in web cart; do
    said=$(pages "$workload")
    grep -q '^leno_tls_fips 1$' <<<"$said" || fail "$1: $workload has no FIPS module"
  done
  grep -q '^leno_tls_handshakes_total{direction="inbound"} [1-9]' <<<"$said" || fail "$1: no handshake"
  said=$("$programs/leno" identity --name "$name")
  grep -q '^TLS  *of the FIPS module' <<<"$said" || fail "$1: leno identity: $said"

  for choice in '-groups P-256 -ciphersuites TLS_AES_128_GCM_SHA256' '-groups P-384 -ciphersuites TLS_AES_256_GCM_SHA384'; do
    # shellcheck disable=SC2086
    said=$(hello $choice)
    [[ $said == *"Cipher is TLS_AES_"* ]] || fail "$1: $choice is refused: $said"
  done
  for choice in '-groups X25519' '-groups P-256 -ciphersuites TLS_CHACHA20_POLY1305_SHA256'; do
    # shellcheck disable=SC2086
    said=$(hello $choice)
    [[ $said == *"alert handshake failure"* ]] || fail "$1: $choice is not refused: $said"
  done
  "$programs/leno" down --name "$name"
  echo "$1: passed"
}
follows sidecar
follows node
