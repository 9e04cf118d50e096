#!/usr/bin/env bash
# Runs every test and ends with the sum of the runners' own counts.
#
# Tests that need root, the kernel's BPF or a Debian server say so and are skipped without it.
# LENO_REQUIRE=root,bpf,... (CI sets it) turns such a skip into a failure.
set -uo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# With the tests, whose dependencies have features of their own: without them tokio and all above it is built twice.
cargo build --workspace --bins --tests || exit 1

# What the control plane's tests need of Kubernetes, where Go can build it: 1.21 and later fetch the version
# that the module asks for, Debian 12 has an older one. Without it those tests say that they are skipped.
go_version=$(PATH="/usr/local/go/bin:$PATH" go env GOVERSION 2>/dev/null)
if [ -z "${CLUSTER_KUBE:-}" ] && [[ $go_version =~ ^go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 21 ]; then
  if kube=$(scripts/cluster.sh api); then
    export CLUSTER_KUBE=$kube
  else
    echo "test: etcd and the API server cannot be built; their tests are skipped" >&2
  fi
fi

cargo test --workspace --no-fail-fast 2>&1 | tee "$log"
code=${PIPESTATUS[0]}

# What makes images is written in Go, as are its tests. A machine of CI may have an old Go, or nowhere to fetch modules
# from: without them it is a skip, which is counted, and a failure only where what is built by Go as well is required.
cluster_go() { (cd e2e/cluster && PATH="/usr/local/go/bin:$PATH" CGO_ENABLED=0 go "$@"); }
lacks=
if ! [[ $go_version =~ ^go1\.([0-9]+) ]] || [ "${BASH_REMATCH[1]}" -lt 21 ]; then
  lacks="Go 1.21 or newer (found: ${go_version:-none})"
elif ! cluster_go list -deps -test . >/dev/null; then
  lacks="the modules of e2e/cluster, which cannot be fetched"
fi
if [ -z "$lacks" ]; then
  cluster_go test -count=1 -v -run '^TestImage' . 2>&1 | tee -a "$log"
  [ "${PIPESTATUS[0]}" = 0 ] || code=1
elif [[ ",${LENO_REQUIRE:-}," == *,kubernetes,* ]]; then
  echo "--- FAIL: TestImage: LENO_REQUIRE has kubernetes, and making images is not tested without $lacks" | tee -a "$log"
  code=1
else
  echo "--- SKIP: TestImage: making images is not tested without $lacks" | tee -a "$log"
fi

# A test that skips prints a line that starts so (the runner shows it only when asked to).
awk -v code="$code" '
  /^test result:/ {passed += $4; failed += $6; ignored += $8}
  /^--- PASS:/ {passed++} /^--- FAIL:/ {failed++} /^--- SKIP:/ {ignored++}
  END {printf "\n%d passed, %d failed, %d skipped\n", passed, failed, ignored}' "$log"
exit "$code"
