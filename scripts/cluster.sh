#!/usr/bin/env bash
# Builds a test cluster's binaries into cluster/ of the target directory, installs the Debian packages that they
# need, and runs one of them:
#
#   scripts/cluster.sh up --nodes 2     from nothing to nodes that are Ready
#   scripts/cluster.sh kubectl get pods -A
#   scripts/cluster.sh down
#   CLUSTER_SHARE=node scripts/cluster.sh test -run '^TestMesh$'    with flags of go test; TestMesh in node mode with that share
#   scripts/cluster.sh api              the path of etcd and the API server as one binary, built here
#   scripts/cluster.sh api-test         the controller, the agent and leno against etcd and the API server alone
#
# The first build compiles Kubernetes, which takes 10 minutes on two idle cores; if nothing has changed, a build
# takes seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

kubernetes=$(awk '$1 == "k8s.io/kubernetes" {print $2}' e2e/cluster/kube/go.mod)
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}/cluster" && cd "${CARGO_TARGET_DIR:-target}/cluster" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
. scripts/go.sh

command -v go >/dev/null || { echo "Go is missing: install 1.26 or newer as go.dev/doc/install says" >&2; exit 1; }
export CGO_ENABLED=0

# The version that `kubectl version` and the conformance reports show, and that Helm compares with the version that
# a chart needs.
minor=${kubernetes#v1.} minor=${minor%%.*}
flags=(-s -w)
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags+=(-X "$package.gitVersion=$kubernetes" -X "$package.gitMajor=1" -X "$package.gitMinor=$minor"
    -X "$package.gitTreeState=clean")
done

# etcd and the API server alone need nothing else. Compiling them takes 4 minutes on two idle cores.
if [[ "${1-}" == api || "${1-}" == api-test ]]; then
  [ -e "$target/api" ] || echo "building etcd and the API server $kubernetes: once, 4 minutes or more" >&2
  (cd e2e/cluster/kube && go build -trimpath -ldflags "${flags[*]}" -o "$target/api" ./api)
  [ "$1" = api-test ] || { echo "$target/api"; exit; }
  CLUSTER_KUBE="$target/api" exec cargo test -p leno-controller -p leno-agent -p leno --test kubernetes --test cluster -- --nocapture "${@:2}"
fi

[ "$(id -u)" = 0 ] || { echo "creating the namespaces of a cluster needs root: type sudo make cluster-up" >&2; exit 1; }
for file in /usr/bin/containerd /usr/sbin/runc /usr/lib/cni/bridge /usr/sbin/conntrack /bin/busybox; do
  if [ ! -e "$file" ]; then
    scripts/apt-install.sh containerd runc containernetworking-plugins conntrack iptables busybox-static
    break
  fi
done

[ -e "$target/kube" ] || echo "building Kubernetes $kubernetes: once, 10 minutes or more" >&2
(cd e2e/cluster/kube && go build -trimpath -ldflags "${flags[*]}" -o "$target/kube" .)
(cd e2e/cluster && go build -trimpath -ldflags '-s -w' -o "$target/cluster" .)

case ${1-} in
  "") ;;
  test)
    # Builds the mesh's programs that the nodes run.
    if [ -z "${CLUSTER_BIN:-}" ]; then
      cargo build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-agent -p leno-cni
      export CLUSTER_BIN="${target%/cluster}/debug"
    fi
    CLUSTER_BEFORE=${CLUSTER_BEFORE:-$(scripts/before.sh)}
    export CLUSTER_BEFORE
    # CLUSTER_FACES names a folder with static builds of the programs face, smiley and color of Faces; without it,
    # stand-ins for them are built. By now everything exists, so no test may be left out.
    export LENO_REQUIRE="${LENO_REQUIRE:+$LENO_REQUIRE,}cluster"
    # The tests take half an hour on two idle cores; by default, go test would end them after ten minutes.
    cd e2e/cluster && CLUSTER_KUBE="$target/kube" go test -count=1 -timeout 50m -v ./... "${@:2}" ;;
  *) exec "$target/cluster" "$1" --state "$target/state" --kube "$target/kube" "${@:2}" ;;
esac
