#!/usr/bin/env bash
# Runs the test binaries that scripts/test-queue.sh has queued in FOLDER, several at a time, because many wait for
# timers most of the time. cargo would run them one after another.
#
#   scripts/test-pool.sh FOLDER
#
# Each binary that starts meshes has its own network and folders (scripts/apart.sh). The lab runs once for each
# capture backend, once for the cases that do not depend on it, and in part in node mode; the tests of `leno up`
# run in two parts. Four of these run at a time, because they wait more than they compute: three at a time used 1.3
# of two processors. Binaries that start API servers use much processor time, so they run one after another, as one
# of the four. All others run in further lanes: one lane for every two processors, or LENO_TEST_LANES lanes; 0 runs
# one binary at a time. The output of a binary is printed when it ends.
set -uo pipefail

queue=$1
export queue
lanes=${LENO_TEST_LANES:-$((($(nproc) + 1) / 2))}

# The binaries that start meshes, capture traffic, or look at all meshes of the machine. The longest come first.
lab=leno-testkit-lab
meshes=("$lab-once" "$lab-nftables" "$lab-others" "$lab-ebpf" leno-bench leno-up leno-up-beside "$lab-identity" leno-docs
  stacks leno-capture-kernel "$lab-node" leno-testkit-clients "$lab-workload" leno-testkit-grpc leno-testkit-h2spec
  leno-agent-leno_agent leno-local-leno_local leno-cni-leno_cni)
export meshes_listed=" ${meshes[*]} "
api_servers=(leno-controller-kubernetes leno-cluster leno-agent-kubernetes)
# Other binaries that take long. They begin first, so that none is left running alone at the end.
long=(leno-testkit-resilience leno-testkit-abuse leno-testkit-adversary leno-serve-scale leno-fuzz-replay)

run() { # job
  local job=$1 began=$SECONDS code=0 name
  name=$(basename "${job%.job}") name=${name#*-}
  # The paths of programs that exist only in this run, once they are built: the API server, and Helm.
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
  local apart=()
  [[ $meshes_listed != *" $name "* ]] || apart=(scripts/apart.sh)
  # Processes that a shell starts in the background ignore Ctrl-C, and their children inherit that.
  env --default-signal=INT,QUIT "${apart[@]}" bash "$job" >"${job%.job}.log" 2>&1 </dev/null || code=$?
  {
    # A binary that ends without a result has failed, whatever its exit code.
    if ! grep -qE '^(test result|--- (PASS|FAIL|SKIP)):' "${job%.job}.log"; then
      echo "--- FAIL: $name: ended with code $code and without a result" >>"${job%.job}.log"
      code=1
    fi
    echo "$code" >"${job%.job}.code"
    flock 9
    printf '\n     Running %s (%d s, exit code %d)\n' "$name" $((SECONDS - began)) "$code"
    shown "${job%.job}.log"
  } 9>"$queue/print.lock"
}

# Prints a log without the output of tests that passed, but with a line for each test that was skipped, and why.
shown() { # log
  awk '
    /^failures:$/ || /^test result:/ {of_passed = 0}
    !of_passed && !/^successes:$/ {print}
    /^successes:$/ {of_passed = 1}
    of_passed && /^---- .* stdout ----$/ {test = $2}
    of_passed && test != "" && /^skipped: / {print "--- skip: " test ": " substr($0, 10); test = ""}
  ' "$1"
}

run_each() { # jobs, a line each: one after another; nothing, if there is none
  local jobs job
  mapfile -t jobs <<<"$1"
  for job in "${jobs[@]}"; do [ -z "$job" ] || run "$job"; done
}
export -f run run_each shown

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

# The lab takes longer than all others together, so its parts are separate jobs. `others` contains what the parts
# before leave out.
part() { # name, arguments of the binary: adds a job
  sed "\$ s/\$/ ${*:2}/" "$job" >"${job%.job}-$1.job"
}
# The cases that are most informative in little time, in node mode; scripts/nightly.sh shares runs all cases.
in_node_mode() { # share, arguments of the binary: adds a job
  part "$@"
  sed -i "\$ s/^exec/exec env LENO_LAB_SHARE=$1/" "${job%.job}-$1.job"
}
for job in "$queue"/[0-9]*-"$lab".job; do
  [ -e "$job" ] || continue
  part ebpf ebpf::
  part nftables nftables::
  part identity once::identity
  part once once:: --skip once::identity
  part others --skip ebpf:: --skip nftables:: --skip once::
  # The cases that run on the shared mesh, and those that kill proxies in strict mode.
  in_node_mode node ebpf:: --skip=::{explain,egress,authorization,strangers,flows,disturbance,node,soak}
  in_node_mode workload ebpf::encryption
  rm "$job"
done
# The second longest binary runs in two parts.
for job in "$queue"/[0-9]*-leno-up.job; do
  [ -e "$job" ] || continue
  beside=({mishaps,stat,flows,drill,completion,cron,daily}::)
  part beside "${beside[@]}"
  sed -i "\$ s/\$/ ${beside[*]/#/--skip=}/" "$job"
done

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
  for job in "${mesh_jobs[@]}" "${api_jobs[@]}" "${other_jobs[@]}"; do run "$job"; done
else
  api_jobs=$(printf '%s\n' "${api_jobs[@]}")
  printf '%s\0' "$api_jobs" "${mesh_jobs[@]}" | xargs -0 -r -n 1 -P 4 bash -c 'run_each "$1"' bash &
  # shellcheck disable=SC2064
  trap "kill $! 2>/dev/null; exit 130" INT TERM
  printf '%s\0' "${other_jobs[@]}" | xargs -0 -r -n 1 -P "$lanes" bash -c 'run_each "$1"' bash
  wait
fi

jobs=$(find "$queue" -name '*.job' | wc -l)
codes=$(find "$queue" -name '*.code' | wc -l)
[ "$jobs" = "$codes" ] || { echo "--- FAIL: $jobs test binaries were queued, $codes have ended"; exit 1; }
! grep -qvx 0 "$queue"/*.code
