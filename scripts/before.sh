#!/usr/bin/env bash
# Builds the proxy of an earlier release into before/ of the target directory, and prints its path: what CLUSTER_BEFORE is
# for TestSkew of e2e/cluster. It is built once: 5 minutes on two idle cores.
#
#   scripts/before.sh
#   BEFORE=COMMIT scripts/before.sh      of another commit
#
# The release is the newest one of an earlier minor version. Until there is one, it is the last commit before the control plane
# had AuthorizationPolicies whose lock file is complete: such a proxy speaks today's version of discovery and lacks a feature (decision 132).
set -euo pipefail
cd "$(dirname "$0")/.."

first=406831c6e15f2d37898ce7602d7a887c04da0922
minor=$(sed -n 's/^version = "\([0-9]*\.[0-9]*\)\..*/\1/p' Cargo.toml | head -n 1)
release=$(git tag --list 'v[0-9]*' --sort=-version:refname | grep -v "^v${minor//./\\.}\." | head -n 1 || true)
commit=${BEFORE:-${release:-$first}}
commit=$(git rev-parse --verify --quiet "$commit^{commit}") ||
  { echo "commit $commit is not in this clone: git fetch --unshallow --tags" >&2; exit 1; }

target=$(mkdir -p "${CARGO_TARGET_DIR:-target}/before" && cd "${CARGO_TARGET_DIR:-target}/before" && pwd)
program=$target/${commit:0:12}/leno-proxy
if [ ! -e "$program" ]; then
  echo "building the proxy of ${commit:0:12}: once, 5 minutes or more" >&2
  rm -rf "$target/src"
  mkdir -p "$target/src" "${program%/*}"
  git archive "$commit" | tar -x -C "$target/src"
  # In a folder of its own, or it would take the place of today's proxy.
  (cd "$target/src" && CARGO_TARGET_DIR=$target/build cargo build --locked -p leno-proxy >&2)
  mv "$target/build/debug/leno-proxy" "$program"
  rm -rf "$target/build" "$target/src"
fi
echo "$program"
