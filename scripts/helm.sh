#!/usr/bin/env bash
# Builds Helm, in the version of e2e/helm, into cluster/ of the target directory, and prints its path. The first
# build takes some minutes, later ones seconds. The variable LENO_HELM passes it to the tests that need it:
#
#   LENO_HELM=$(scripts/helm.sh) cargo test -p leno-charts
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(mkdir -p "${CARGO_TARGET_DIR:-target}/cluster" && cd "${CARGO_TARGET_DIR:-target}/cluster" && pwd)
. scripts/go.sh
cd e2e/helm
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$target/helm" helm.sh/helm/v3/cmd/helm
echo "$target/helm"
