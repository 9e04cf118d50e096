#!/usr/bin/env bash
# Runs all tests, and at the end prints the sum of the runners' counts.
#
# Tests that need root, the kernel's BPF or a Debian server are skipped without it, and say so.
# LENO_REQUIRE=root,bpf,... (CI sets it) turns such a skip into a failure.
#
# Test binaries run at the same time (scripts/test-pool.sh). The command in LENO_TEST_BESIDE (in CI: clippy)
# compiles meanwhile, and uses only the processor time that the tests leave. etcd, the API server and Helm are
# built before that, because tests of the control plane wait for them.
set -uo pipefail
cd "$(dirname "$0")/.."

queue=$(mktemp -d)
background=
trap '[ -z "$background" ] || kill "$background" 2>/dev/null; rm -rf "$queue"' EXIT
log=$queue/log
beside=${LENO_TEST_BESIDE:-}
unset LENO_TEST_BESIDE

# Meshes of tests have separate networks (scripts/apart.sh), from which nothing can be downloaded, so the tools
# that they use are installed before. A test whose tool cannot be installed says so.
scripts/tools.sh tests >"$queue/tools.log" 2>&1 </dev/null &
tools=$!

# Everything is built at once, together with the tests. The dependencies of tests have additional features, and in
# separate builds tokio and everything above it would be built twice.
cargo build --workspace --bins --tests --examples || exit 1
host=$(rustc -vV | awk '/^host: / {print $2}') host=${host//-/_}
export LENO_TEST_QUEUE=$queue
env "CARGO_TARGET_${host^^}_RUNNER=$PWD/scripts/test-queue.sh" \
  cargo test --workspace --lib --bins --tests >"$queue/cargo.out" 2>&1 || { cat "$queue/cargo.out"; exit 1; }
unset LENO_TEST_QUEUE
printf 'cd %q\nexec scripts/stacks-test.sh\n' "$PWD" >"$queue/999-stacks.job"
wait "$tools" || cat "$queue/tools.log" >&2

. scripts/go.sh

# Builds what the control plane's tests need of Kubernetes, if Go can build it. Without it, those tests say that
# they are skipped. Its path is written to api.done, which is empty if it was not built.
kubernetes() {
  local kube=${CLUSTER_KUBE:-}
  if [ -z "$kube" ] && new_go && ! kube=$(scripts/cluster.sh api 2>"$queue/api.log"); then
    cat "$queue/api.log" >&2
    echo "test: etcd and the API server cannot be built; their tests are skipped" >&2
    kube=
  fi
  printf %s "$kube" >"$queue/api.new"
  mv "$queue/api.new" "$queue/api.done"
}

# Builds Helm in the same way; its path is written to helm.done.
helm() {
  local helm=${LENO_HELM:-$(type -P helm)}
  if [ -z "$helm" ] && new_go && ! helm=$(scripts/helm.sh 2>"$queue/helm.log"); then
    cat "$queue/helm.log" >&2
    echo "test: Helm cannot be built; its tests are skipped" >&2
    helm=
  fi
  printf %s "$helm" >"$queue/helm.new"
  mv "$queue/helm.new" "$queue/helm.done"
}

# The program that makes images is written in Go, and so are its tests. A machine in CI may have an old Go, or no
# place to fetch modules from. Then the step is skipped and counted as such; it is a failure only if other programs
# that are built by Go are required as well.
cluster_go() { (cd e2e/cluster && CGO_ENABLED=0 go "$@"); }
images() {
  local lacks=
  if ! new_go; then
    lacks="Go 1.21 or newer (found: $(go env GOVERSION 2>/dev/null || echo none))"
  elif ! cluster_go list -deps -test . >/dev/null; then
    lacks="the modules of e2e/cluster, which cannot be fetched"
  fi
  if [ -z "$lacks" ]; then
    local target=${CARGO_TARGET_DIR:-$PWD/target} made=
    # Makes images of the programs that were built above, if the images can be started: as root, by containerd.
    # Their test says what is missing.
    if [ "$(id -u)" = 0 ] && command -v containerd >/dev/null; then
      scripts/images.sh --programs "$target/debug" || return
      made=$target/images
    fi
    CLUSTER_IMAGES=$made cluster_go test -count=1 -v -run '^Test(Made)?Image' .
  elif [[ ",${LENO_REQUIRE:-}," == *,kubernetes,* ]]; then
    echo "--- FAIL: TestImage: LENO_REQUIRE has kubernetes, and making images is not tested without $lacks"
    return 1
  else
    echo "--- SKIP: TestImage: making images is not tested without $lacks"
  fi
}

# Runs a step in the background, and keeps its output and its exit code for the end.
step() { # name, command...
  local code=0
  "${@:2}" >"$queue/$1.step" 2>&1 </dev/null || code=$?
  echo "$code" >"$queue/$1.ended"
}
(
  # The longest tests wait for these two.
  kubernetes
  helm
  chrt --idle --pid 0 "$BASHPID" 2>/dev/null || true
  step images images
  [ -z "$beside" ] || step beside bash -c "$beside"
) &
background=$!

scripts/test-pool.sh "$queue" 2>&1 | tee "$log"
code=${PIPESTATUS[0]}
wait "$background"
for name in images ${beside:+beside}; do
  cat "$queue/$name.step" | tee -a "$log"
  if [ "$(cat "$queue/$name.ended" 2>/dev/null)" != 0 ]; then
    # The sum below counts the failed step even if it printed no count of its own.
    grep -qE '^test result: FAILED|^--- FAIL' "$queue/$name.step" || echo "--- FAIL: $name" | tee -a "$log"
    code=1
  fi
done

# Runners count a skipped test as one that passed. scripts/test-pool.sh prints a line for each skipped test.
awk '
  /^test result:/ {passed += $4; failed += $6; ignored += $8; if ($8) why["ignored by their runner; those of the lab need root"] += $8}
  /^--- PASS:/ {passed++} /^--- FAIL:/ {failed++} /^--- SKIP:/ {ignored++; why[substr($0, 11)]++}
  /^--- skip:/ {passed--; ignored++; sub(/^--- skip: [^ ]+: /, ""); why[$0]++}
  END {
    for (reason in why) printf "%s%5d  %s", once++ ? "\n" : "\nSkipped:\n", why[reason], reason
    printf "\n\n%d passed, %d failed, %d skipped\n", passed, failed, ignored
  }' "$log"
exit "$code"
