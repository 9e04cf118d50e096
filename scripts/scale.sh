#!/usr/bin/env bash
# Measures the control plane of a large mesh: the real controller on a real API server with 50,000 stub pods, and
# 2,000 clients of discovery (control/app/tests/kubernetes/scale.rs). This takes about 20 minutes, the time of a
# release build, and 8 GB of memory.
#
#   scripts/scale.sh                     the size in the design; fails if one of the design's limits is exceeded
#   BEFORE=FILE scripts/scale.sh         prints the figures of an earlier run next to those of this one
#   LENO_SCALE_PROXIES=200 scripts/scale.sh     another size; limits of time and memory do not apply
#
# The controller has separate CPUs: two if there are four or more, one if there are two. Figures are written to
# scale/<commit>.tsv of the target directory.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/scale"

CLUSTER_KUBE=$(scripts/cluster.sh api)
# Built with optimisations, like a release. In a build for tests, the code that reads Kubernetes' objects is not
# optimised, and slow clients would distort the measurement.
built=$(cargo test --release -p leno-controller --test kubernetes --no-run --message-format json |
  sed -n 's/.*"executable":"\([^"]*kubernetes-[^"]*\)".*/\1/p' | tail -n 1)

cpus=$(nproc)
if [ "$cpus" -ge 4 ]; then
  own=0-1 rest=2-$((cpus - 1))
elif [ "$cpus" -ge 2 ]; then
  own=$((cpus - 1)) rest=0-$((cpus - 2))
else
  own=0 rest=0
fi
echo "the controller on CPU $own, the API server and the clients on CPU $rest"

# The test runs in a separate network namespace, so that the clients can have several addresses: the controller
# accepts 1,024 connections per address.
addresses=
for nth in 1 2 3 4 5 6 7 8; do addresses+=${addresses:+,}10.200.0.$nth; done
export CLUSTER_KUBE
export LENO_SCALE=large LENO_SCALE_CPUS=$own LENO_SCALE_ADDRESSES=$addresses
export LENO_SCALE_RECORD=${RECORD:-$target/scale/$(git rev-parse --short HEAD).tsv} LENO_SCALE_BEFORE=${BEFORE:-}
namespace=(unshare --net)
[ "$(id -u)" = 0 ] || namespace=(unshare --user --map-root-user --net)
# shellcheck disable=SC2016
exec "${namespace[@]}" bash -euc '
  ip link set lo up
  for address in ${LENO_SCALE_ADDRESSES//,/ }; do ip address add "$address/32" dev lo; done
  exec taskset --cpu-list "$0" "$@"' "$rest" \
  "$built" scale::a_large_mesh_is_served_through_changes_a_rollout_and_an_outage --exact --nocapture
