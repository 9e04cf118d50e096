#!/usr/bin/env bash
# Tests the images that scripts/images.sh has made (as root): their content, that containerd accepts them, and that
# their programs run; those of another architecture run in qemu. Installs the packages that are necessary for this.
set -euo pipefail
cd "$(dirname "$0")/.."

images=$(cd "${CARGO_TARGET_DIR:-target}/images" 2>/dev/null && pwd) || { echo "there are no images yet: run make images" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "running the programs of an image needs root: type sudo make images-test" >&2; exit 1; }
PATH="$PATH:/usr/sbin:/sbin"
. scripts/go.sh
missing=()
command -v containerd >/dev/null || missing+=(containerd)
command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
[ ${#missing[@]} = 0 ] || scripts/apt-install.sh "${missing[@]}"
# By now everything is installed, so no test may be left out.
export LENO_REQUIRE="${LENO_REQUIRE:+$LENO_REQUIRE,}images"
cd e2e/cluster && CGO_ENABLED=0 CLUSTER_IMAGES="$images" go test -count=1 -v -run '^Test(Made)?Image' .
