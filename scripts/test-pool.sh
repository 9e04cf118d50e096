#!/usr/bin/env bash
# Runs the test binaries that scripts/test-queue.sh has queued in FOLDER, several at a time: many wait for timers most
# of the time, while cargo would run one after another.
#
#   scripts/test-pool.sh FOLDER
#
# Binaries that start meshes share the machine's names, addresses and control groups: they run one after another, in a
# lane of their own; so do those that start API servers, which take much of the processors. All others share further
# lanes: one for every two processors, or LENO_TEST_LANES; 0 runs one binary at a time. The output of a binary is printed
# whole when it ends.
set -uo pipefail

queue=$1
export queue
lanes=${LENO_TEST_LANES:-$((($(nproc) + 1) / 2))}

# What starts meshes, captures, or looks at all of the machine's meshes, the longest first.
meshes=(leno-testkit-lab leno-up leno-docs leno-testkit-clients leno-testkit-grpc leno-testkit-h2spec leno-bench
  leno-capture-kernel leno-agent-leno_agent leno-local-leno_local leno-cni-leno_cni)
api_servers=(leno-controller-kubernetes leno-cluster leno-agent-kubernetes)
# Others that take long: these begin first, so that none is left running alone at the end.
long=(leno-testkit-resilience leno-testkit-abuse leno-serve-scale leno-fuzz-corpus)

run() { # job
  local job=$1 began=$SECONDS code=0 name
  name=$(basename "${job%.job}") name=${name#*-}
  # What only this run has, once it is built: the API server, and Helm.
  case $name in
    leno-controller-kubernetes | leno-cluster | leno-agent-kubernetes)
      until [ -e "$queue/api.done" ]; do sleep 0.2; done
      [ -s "$queue/api.done" ] && export CLUSTER_KUBE=$(<"$queue/api.done") ;;
  esac
  case $name in
    leno-controller-kubernetes | leno-charts-helm)
      until [ -e "$queue/helm.done" ]; do sleep 0.2; done
      [ -s "$queue/helm.done" ] && export LENO_HELM=$(<"$queue/helm.done") ;;
  esac
  # A shell's background ignores Ctrl-C, and what it starts inherits that.
  env --default-signal=INT,QUIT bash "$job" >"${job%.job}.log" 2>&1 </dev/null || code=$?
  {
    # A binary that ends without a result, whatever its exit code is, has failed.
    if ! grep -q '^test result:' "${job%.job}.log"; then
      echo "--- FAIL: $name: ended with code $code and without a result" >>"${job%.job}.log"
      code=1
    fi
    echo "$code" >"${job%.job}.code"
    flock 9
    printf '\n     Running %s (%d s, exit code %d)\n' "$name" $((SECONDS - began)) "$code"
    cat "${job%.job}.log"
  } 9>"$queue/print.lock"
}
export -f run

listed() { # whether $1 is one of the names that follow
  local name=$1 one
  for one in "${@:2}"; do [ "$name" != "$one" ] || return 0; done
  return 1
}

take() { # names...: prints the jobs of these names, in this order
  local name job
  for name in "$@"; do
    for job in "$queue"/[0-9]*-"$name".job; do [ ! -e "$job" ] || echo "$job"; done
  done
}

mapfile -t mesh_jobs < <(take "${meshes[@]}")
mapfile -t api_jobs < <(take "${api_servers[@]}")
mapfile -t other_jobs < <(
  take "${long[@]}"
  for job in "$queue"/[0-9]*.job; do
    name=$(basename "${job%.job}") name=${name#*-}
    listed "$name" "${meshes[@]}" "${api_servers[@]}" "${long[@]}" || echo "$job"
  done
)

if [ "$lanes" = 0 ]; then
  for job in "${mesh_jobs[@]}" "${other_jobs[@]}" "${api_jobs[@]}"; do run "$job"; done
else
  for job in "${mesh_jobs[@]}"; do run "$job"; done &
  first=$!
  for job in "${api_jobs[@]}"; do run "$job"; done &
  # shellcheck disable=SC2064
  trap "kill $first $! 2>/dev/null; exit 130" INT TERM
  printf '%s\0' "${other_jobs[@]}" | xargs -0 -r -n 1 -P "$lanes" bash -c 'run "$1"' bash
  wait
fi

jobs=$(find "$queue" -name '*.job' | wc -l)
codes=$(find "$queue" -name '*.code' | wc -l)
[ "$jobs" = "$codes" ] || { echo "--- FAIL: $jobs test binaries were queued, $codes have ended"; exit 1; }
! grep -qvx 0 "$queue"/*.code
