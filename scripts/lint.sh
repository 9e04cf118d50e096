#!/usr/bin/env bash
# Formatting, clippy, file sizes, dependency direction, shell syntax.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
scripts/lint-tree.sh
for script in scripts/*.sh .ci/run; do bash -n "$script"; done
echo "lint: ok"
