#!/usr/bin/env bash
# Checks formatting, clippy, go vet, file sizes, the direction of dependencies, permitted dependencies, plain
# words, links, tests of promises, and shell syntax.
#
#   scripts/lint.sh           all of it
#   scripts/lint.sh quick     the checks that compile nothing
#   scripts/lint.sh slow      clippy and go vet
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/go.sh

quick() {
  cargo fmt --all --check
  scripts/lint-tree.sh
  scripts/lint-words.sh
  scripts/lint-links.sh
  scripts/lint-promises.sh
  for script in scripts/*.sh .ci/run; do bash -n "$script"; done
  unformatted=$(gofmt -l e2e)
  [ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; exit 1; }
}

# Checks that the committed page of the dashboard is what its sources make.
page() {
  local code=0
  scripts/web.sh check || code=$?
  [ "$code" != 0 ] || return 0
  [ "$code" = 3 ] || exit "$code"
  [[ ",${LENO_REQUIRE:-}," != *,tools,* ]] || { echo "LENO_REQUIRE has tools" >&2; exit 1; }
  echo "lint: dashboard/web left out"
}

slow() {
  # A warning fails the build only in CI, so that a new lint of a newer compiler stops no user from trying a
  # change.
  deny=()
  [ -z "${CI-}" ] || deny=(-- -D warnings)
  cargo clippy --workspace --all-targets --quiet "${deny[@]}"
  if new_go; then
    (cd e2e/cluster && go vet ./...)
  elif [[ ",${LENO_REQUIRE:-}," == *,tools,* ]]; then
    echo "go vet needs Go 1.21 or newer, and LENO_REQUIRE has tools" >&2
    exit 1
  else
    echo "lint: go vet left out: it needs Go 1.21 or newer"
  fi
  page
  scripts/supply.sh check
}

case ${1-all} in
  quick) quick ;;
  slow) slow ;;
  all) quick; slow ;;
  *) echo "scripts/lint.sh: unknown argument $1: use quick, slow, or none" >&2; exit 64 ;;
esac
echo "lint: ok"
