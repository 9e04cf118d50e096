#!/usr/bin/env bash
# Runs the checks that take too long for every change, and writes into docs/status.md when each last passed:
#
#   scripts/nightly.sh                  everything: hours (needs root, and Go for most)
#   scripts/nightly.sh fuzz scale       only these
#
# A check that fails does not stop the others. The exit code is 1 if any has failed. Logs: nightly/ of the target
# directory.
set -uo pipefail
cd "$(dirname "$0")/.."

steps=(e2e conformance e2e-shares conformance-shares fuzz scale parity shares images docs dist supply drill rotation handover spire fips ambient)
page=docs/status.md
logs=${CARGO_TARGET_DIR:-target}/nightly
mkdir -p "$logs"
[ $# -gt 0 ] || set -- "${steps[@]}"

run() { # step
  case $1 in
    e2e | conformance | scale | docs | dist) make --no-print-directory "$1" ;;
    fuzz) FUZZ_SECONDS=${FUZZ_SECONDS:-600} make --no-print-directory fuzz ;;
    parity)
      "${CARGO:-cargo}" build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-testkit --bins --examples &&
        LENO_PARITY_REQUESTS=${LENO_PARITY_REQUESTS:-1000000} LENO_PARITY_RATE=${LENO_PARITY_RATE:-2000} \
          scripts/apart.sh "${CARGO:-cargo}" test -p leno-testkit --test lab -- ebpf::flows &&
        "${CARGO:-cargo}" test -p leno-flows --test kernel -- --ignored a_million_flows
      ;;
    shares)
      "${CARGO:-cargo}" build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-testkit --bins --examples || return
      local way code=0
      # In the third way, instances of one process send to each other in memory.
      for way in workload:false node:false node:true; do
        # Each night tests another generated mesh. If it fails, the output names its seed.
        LENO_SOAK_SECONDS=60 LENO_SEED=${LENO_SEED:-$RANDOM} LENO_LAB_SHARE=${way%:*} LENO_LAB_ONE_PASS=${way#*:} \
          scripts/apart.sh "${CARGO:-cargo}" test -p leno-testkit --test lab -- --skip nftables:: --skip iptables:: || code=1
      done
      return "$code"
      ;;
    e2e-shares)
      local share code=0
      for share in workload node; do
        CLUSTER_SHARE=$share scripts/cluster.sh test -run '^TestMesh$' || code=1
      done
      return "$code"
      ;;
    conformance-shares)
      local share code=0
      for share in workload node; do
        SHARE=$share scripts/conformance.sh || code=1
      done
      return "$code"
      ;;
    images) make --no-print-directory images images-test ;;
    drill) LENO_DRILL=all scripts/apart.sh "${CARGO:-cargo}" test -p leno --test up -- --nocapture drill:: ;;
    rotation)
      # Each of four clients sends a quarter of 2,000 requests a second.
      "${CARGO:-cargo}" build -p leno -p leno-proxy -p leno-controller -p leno-testkit --bins --examples &&
        LENO_ROTATION_RATE=500 scripts/apart.sh "${CARGO:-cargo}" test -p leno-testkit --test lab -- \
          a_root_is_replaced_under_load_while_control_planes_are_killed &&
        LENO_STRANGERS_SECONDS=60 scripts/apart.sh "${CARGO:-cargo}" test -p leno-testkit --test abuse -- --nocapture strangers_take_no_place
      ;;
    handover)
      # Optimised programs, because the lines that it prints have times, which tests do not assert.
      "${CARGO:-cargo}" build --release -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-testkit --bins --examples || return
      local code=0 lab=(scripts/apart.sh "${CARGO:-cargo}" test --release -p leno-testkit --test lab --)
      # In the first case one client sends requests, in the second one two do.
      LENO_NODE_SWITCHES=20 LENO_NODE_UPLOAD=1073741824 LENO_ROTATION_RATE=2000 \
        "${lab[@]}" ebpf::node::workloads_go_from_mode_to_mode_under_load || code=1
      LENO_NODE_CONNECTIONS=10000 LENO_ROTATION_RATE=1000 "${lab[@]}" once::node::processes_that_take_over || code=1
      "${lab[@]}" once::node::a_killed_process_ends || code=1
      return "$code"
      ;;
    spire)
      "${CARGO:-cargo}" build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-testkit --bins --examples &&
        scripts/apart.sh scripts/spire-test.sh
      ;;
    fips) scripts/apart.sh scripts/fips-test.sh ;;
    ambient)
      # This step needs a build of ztunnel, which LENO_ZTUNNEL names, and fails without it.
      "${CARGO:-cargo}" build -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-testkit --bins --examples &&
        scripts/apart.sh scripts/ambient-test.sh
      ;;
    supply) scripts/supply.sh check && scripts/supply.sh advisories && scripts/supply.sh reproduce ;;
    *) echo "unknown step $1: use some of ${steps[*]}" >&2; return 64 ;;
  esac
}

# Prints how much was done, according to the log: the numbers of tests and of fuzzing inputs, figures of node processes, or
# nothing.
told() { # log
  awk '
    /^--- PASS:/ {passed++} /^--- FAIL:/ {failed++} /^--- SKIP:/ {skipped++}
    /^test result:/ {passed += $4; failed += $6; skipped += $8}
    /^stat::number_of_executed_units:/ {inputs += $2; targets++}
    # Cases of the lab print them, some on the line that names the case.
    match($0, /[0-9.]+ (connections with mTLS and|connections of the process ended|switches:).*/) {
      figures = figures "; " substr($0, RSTART)
    }
    END {
      if (passed + failed + skipped) printf "%d passed, %d failed, %d skipped", passed, failed, skipped
      if (targets) printf "%d targets, %.1f million inputs", targets, inputs / 1e6
      printf "%s", figures
    }' "$1"
}

row() { # step: what it is
  case $1 in
    e2e) echo '`make e2e`: the mesh on a cluster of two nodes' ;;
    conformance) echo '`make conformance`: the suite of Gateway API' ;;
    e2e-shares) echo '`scripts/nightly.sh e2e-shares`: `TestMesh` in node mode, alone and with others in a process' ;;
    conformance-shares) echo '`scripts/nightly.sh conformance-shares`: the suite of Gateway API in node mode, alone and with others in a process' ;;
    fuzz) echo '`make fuzz`: every parser, and the whole proxy' ;;
    scale) echo '`make scale`: the control plane with 50,000 pods' ;;
    parity) echo '`scripts/nightly.sh parity`: 1,000,000 requests of each protocol, counted by the kernel, proxies and clients; the memory of as many flows' ;;
    shares) echo '`scripts/nightly.sh shares`: every case of the lab in node mode, alone, with others in a process, and with requests within it in memory' ;;
    images) echo '`make images images-test`: images, run by containerd' ;;
    docs) echo '`make docs`: links and code blocks of the site' ;;
    supply) echo '`scripts/supply.sh`: dependencies, and two builds of the same bytes' ;;
    drill) echo '`leno why` and 29 faults in a mesh of 20 workloads' ;;
    rotation) echo '`scripts/nightly.sh rotation`: the root replaced under 2,000 requests/s while control planes are killed; 10,000 strangers for a minute' ;;
    handover) echo '`scripts/nightly.sh handover`: 20 switches of mode and share under 2,000 requests/s with a 1 GiB upload; processes that take over with 10,000 connections; one that is killed, after which the longest request took as long as there was no service' ;;
    spire) echo '`scripts/spire-test.sh`: certificates of SPIRE, its root replaced under load, bundles exchanged with it' ;;
    fips) echo '`scripts/fips-test.sh`: the FIPS module of aws-lc, in two proxies and the control plane' ;;
    ambient) echo '`scripts/ambient-test.sh`: HBONE with a real ztunnel, both ways' ;;
    dist) echo '`make dist`: archives and packages, installed and run' ;;
  esac
}

failed=0
for step in "$@"; do
  echo "nightly: $step"
  began=$SECONDS code=0
  run "$step" >"$logs/$step.log" 2>&1 || code=$?
  [ "$code" != 64 ] || { cat "$logs/$step.log" >&2; exit 64; }
  result=passed
  if [ "$code" != 0 ]; then result="**failed** ($code)" failed=1; tail -20 "$logs/$step.log" >&2; fi
  minutes=$(( (SECONDS - began + 59) / 60 ))
  echo "| $(row "$step") | $result | $(date -u +%F) | $(git rev-parse --short HEAD) | $minutes min | $(told "$logs/$step.log") |" \
    >"$logs/$step.row"
done

# The text above the table stays, and so do the rows of steps that did not run today.
{
  sed -n '/^| | result/q;p' "$page" |
    sed "s|^Last run: .*|Last run: $(date -u +%F), Linux $(uname -r), $(nproc) processors.|"
  echo '| | result | date | commit | took | |'
  echo '|---|---|---|---|---|---|'
  for step in "${steps[@]}"; do
    start="| $(row "$step") |"
    if [[ " $* " == *" $step "* ]]; then
      cat "$logs/$step.row"
    else
      grep -F -- "$start" "$page" 2>/dev/null || echo "$start not yet | | | | |"
    fi
  done
} >"$page.new"
mv "$page.new" "$page"
echo "nightly: $page"
exit "$failed"
