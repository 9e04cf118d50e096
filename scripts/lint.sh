#!/usr/bin/env bash
# Formatting, clippy, go vet, file sizes, dependency direction, shell syntax.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
scripts/lint-tree.sh
for script in scripts/*.sh .ci/run; do bash -n "$script"; done
PATH="$PATH:/usr/local/go/bin"
unformatted=$(gofmt -l e2e)
[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; exit 1; }
(cd e2e/cluster && go vet ./...)
echo "lint: ok"
