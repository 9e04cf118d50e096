#!/usr/bin/env bash
# Runs the Gateway API's conformance suite for meshes against Leno, and writes its report to docs/conformance:
#
#   scripts/conformance.sh                        in a cluster of two nodes that it starts and ends (needs root)
#   KUBECONFIG=FILE scripts/conformance.sh        in that cluster, in which Leno is already installed
#   CHANNEL=experimental scripts/conformance.sh   with that channel's definitions; the features are those that the
#                                                 mesh declares
#   SHARE=node scripts/conformance.sh             in node mode with that share (leno.dev/share); its report has another name
#   scripts/conformance.sh --run-test MeshPorts   with flags of the suite's own; then nothing is written
#
# The programs are those in CLUSTER_BIN; without that variable, cargo builds them here. The suite's client and
# server are built from their own module, so no registry is asked for their image.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(mkdir -p "${CARGO_TARGET_DIR:-target}/conformance" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
root=$PWD
. scripts/go.sh
export CGO_ENABLED=0

if [ -z "${CLUSTER_BIN:-}" ]; then
  cargo build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-agent -p leno-cni
  CLUSTER_BIN=$target/debug
fi
arguments=(-channel "${CHANNEL:-standard}" -mesh "$(cd "$CLUSTER_BIN" && pwd)")
case ${SHARE:-} in
  "") ;;
  workload | service-account | namespace | node)
    arguments+=(--mode "node-$SHARE" --namespace-annotations "leno.dev/mode=node,leno.dev/share=$SHARE") ;;
  *) echo "SHARE=$SHARE is not supported: use workload, service-account, namespace or node" >&2; exit 64 ;;
esac
if [ -z "${KUBECONFIG:-}" ]; then
  scripts/cluster.sh
  (cd e2e/conformance/echo
    go build -trimpath -ldflags '-s -w' -o "$target/conformance/" istio.io/istio/pkg/test/echo/cmd/{server,client}
    certificates=$(go list -m -f '{{.Dir}}' istio.io/istio)/tests/testdata/certs/dns
    install -m 644 "$certificates/cert-chain.pem" "$target/conformance/cert.crt"
    install -m 644 "$certificates/key.pem" "$target/conformance/cert.key")
  arguments+=(-cluster "$target/cluster/cluster" -kube "$target/cluster/kube" -echo "$target/conformance")
fi
[ $# -gt 0 ] || arguments+=(-out "$root/docs/conformance")
cd e2e/conformance && go test -count=1 -timeout 60m -v -run TestMesh . "${arguments[@]}" "$@"
