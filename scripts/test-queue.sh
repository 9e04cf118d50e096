#!/usr/bin/env bash
# scripts/test.sh gives this script to cargo as the runner of test binaries. Instead of running a binary, it writes
# a script into $LENO_TEST_QUEUE that runs the binary as cargo would (folder, environment, arguments).
# scripts/test-pool.sh runs those scripts.
set -euo pipefail

name=$(basename "$1")
number=$(find "$LENO_TEST_QUEUE" -name '*.job' | wc -l)
job=$LENO_TEST_QUEUE/$(printf %03d "$number")-$CARGO_PKG_NAME-${name%-*}.job
{
  export -p | grep -vE '^declare -x (LENO_TEST_QUEUE|CARGO_TARGET_[A-Z0-9_]*_RUNNER)='
  printf 'cd %q\nexec' "$PWD"
  printf ' %q' "$@" --show-output
  echo
} >"$job"
