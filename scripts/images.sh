#!/usr/bin/env bash
# Makes the images that an installation needs, and that of `leno bench` in a cluster, without a container engine:
# <target>/images/leno*.tar, each an OCI layout that `ctr images import`, `skopeo copy oci-archive:...` and `podman load` take.
#
#   scripts/images.sh             optimised; programs that load no library are linked so
#   scripts/images.sh --debug     what `cargo build` makes, with the libraries that it loads
#
# REGISTRY and TAG name them: [REGISTRY/]leno-proxy:TAG; without TAG, Leno's version. They are for this
# machine's architecture.
set -euo pipefail
cd "$(dirname "$0")/.."

tag=${TAG:-$(awk -F'"' '/^version = / {print $2; exit}' Cargo.toml)}
prefix=${REGISTRY:+$REGISTRY/}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
out=$target/images
mkdir -p "$out"
PATH="$PATH:/usr/local/go/bin"
command -v go >/dev/null || { echo "Go is missing: install 1.26 or newer as go.dev/doc/install says" >&2; exit 1; }

if [ "${1-}" = --debug ]; then
  cargo build --bins -p leno-proxy -p leno-controller -p leno-cni -p leno-agent -p leno
  binaries=$target/debug agent=$target/debug
else
  # Of the GNU toolchain a target has to be named, so that build scripts are not linked so, too.
  host=$(rustc -vV | awk '/^host: / {print $2}')
  RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static" \
    cargo build --release --target "$host" --bins -p leno-proxy -p leno-controller -p leno-cni
  # The agent brings nft and iptables, and so libraries, in any case; leno loads libelf for its lab.
  cargo build --release --bins -p leno-agent -p leno
  binaries=$target/$host/release agent=$target/release
fi
(cd e2e/cluster && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$out/image-tool" .)

image() { # name, user, file of the image=file of this machine ...
  local name=$1 user=$2; shift 2
  "$out/image-tool" image --name "$prefix$name:$tag" --user "$user" --entrypoint "/$name" --out "$out/$name.tar" "$@"
  printf '%s  %s  %s\n' "$(du -h "$out/$name.tar" | cut -f1)" "$prefix$name:$tag" "$out/$name.tar"
}
image leno-proxy 2102:2102 "/leno-proxy=$binaries/leno-proxy"
image leno-controller 65532:65532 "/leno-controller=$binaries/leno-controller"

# The multi-call program has one name for each of its calls.
tools=(/usr/sbin/nft=/usr/sbin/nft)
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  tools+=("/usr/sbin/$name=/usr/sbin/$name")
done
for extension in /usr/lib/*-linux-gnu/xtables/*.so; do
  tools+=("$extension=$extension")
done
image leno-agent 0:0 "/leno-agent=$agent/leno-agent" "/leno-cni=$binaries/leno-cni" "${tools[@]}"

# The client and the services of `leno bench run --context`.
image leno 65532:65532 "/leno=$agent/leno"
