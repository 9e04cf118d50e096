#!/usr/bin/env bash
# Formatting, clippy, go vet, file sizes, dependency direction, plain words, links, shell syntax.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
# A warning fails the build in CI alone: a newer compiler's new lint stops no one from trying a change.
deny=()
[ -z "${CI-}" ] || deny=(-- -D warnings)
cargo clippy --workspace --all-targets --quiet "${deny[@]}"
scripts/lint-tree.sh
scripts/lint-words.sh
scripts/lint-links.sh
for script in scripts/*.sh .ci/run; do bash -n "$script"; done
PATH="/usr/local/go/bin:$PATH"
unformatted=$(gofmt -l e2e)
[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; exit 1; }
# Go 1.21 and later fetch the version that a module asks for; Debian 12 has an older one.
if [[ $(go env GOVERSION) =~ ^go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 21 ]; then
  (cd e2e/cluster && go vet ./...)
elif [[ ",${LENO_REQUIRE:-}," == *,tools,* ]]; then
  echo "go vet needs Go 1.21 or newer, and LENO_REQUIRE has tools" >&2
  exit 1
else
  echo "lint: go vet left out: it needs Go 1.21 or newer"
fi
echo "lint: ok"
