#!/usr/bin/env bash
# Runs every test and ends with the sum of the runners' own counts.
#
# Tests that need root, the kernel's BPF or a Debian server say so and are skipped without it.
# LENO_REQUIRE=root,bpf,... (CI sets it) turns such a skip into a failure.
set -uo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo build --workspace --bins || exit 1
cargo test --workspace --no-fail-fast 2>&1 | tee "$log"
code=${PIPESTATUS[0]}

# A test that skips prints a line that starts so (the runner shows it only when asked to).
awk -v code="$code" '
  /^test result:/ {passed += $4; failed += $6; ignored += $8}
  END {printf "\n%d passed, %d failed, %d skipped\n", passed, failed, ignored}' "$log"
exit "$code"
