#!/usr/bin/env bash
# The runner of test binaries that scripts/test.sh gives to cargo: instead of running one it writes a script that runs
# it as cargo would (folder, environment, arguments) into $LENO_TEST_QUEUE, for scripts/test-pool.sh.
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
