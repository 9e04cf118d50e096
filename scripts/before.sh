#!/usr/bin/env bash
# Builds the proxy of an earlier release into before/ of the target directory, and prints its path, which is the
# value of CLUSTER_BEFORE for TestSkew of e2e/cluster. It is built only once, which takes 5 minutes on two idle
# cores.
#
#   scripts/before.sh
#   BEFORE=COMMIT scripts/before.sh      of another commit
#
# The release is the newest one of an earlier minor version. As long as there is none, it is the last commit with a
# complete lock file before the control plane had AuthorizationPolicies. A proxy of that commit uses today's
# version of discovery but lacks a feature (decision 132).
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
  # The proxy is built in a separate folder; otherwise it would replace today's proxy.
  (cd "$target/src" && CARGO_TARGET_DIR=$target/build cargo build --locked -p leno-proxy >&2)
  mv "$target/build/debug/leno-proxy" "$program"
  rm -rf "$target/build" "$target/src"
fi
echo "$program"
