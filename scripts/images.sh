#!/usr/bin/env bash
# Makes the images that an installation needs, and the image of `leno bench` in a cluster, without a container
# engine. They are <target>/images/leno*.tar, each with a bill of materials (leno*.cdx.json). Each is an OCI layout
# that `ctr images import`, `skopeo copy oci-archive:...` and `podman load` accept.
#
#   scripts/images.sh             optimised programs, which are linked statically except for leno-agent
#   scripts/images.sh --debug     what `cargo build` makes, with the libraries that it loads
#   scripts/images.sh --programs FOLDER   the programs in FOLDER as they are, such as target/debug of an earlier build
#
# REGISTRY and TAG set the names, [REGISTRY/]leno-proxy:TAG. The default of TAG is Leno's version. With FIPS=1, leno-proxy and
# leno-controller contain aws-lc's FIPS module, and the tags of all images end in -fips, so that one value of the chart
# names all of them.
#
# The images are for this machine's architecture, or for all of those in PLATFORMS (PLATFORMS=linux/amd64,linux/arm64). For
# another architecture, its Debian packages are unpacked below <target> (with apt-get; this needs no root and installs
# nothing), and rustup adds its standard library. The programs are built for one architecture after the other.
# PROFILE=FILE,... names profiles by which leno-proxy is optimised, one for each architecture (scripts/profile.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

built=
if [ "${1-}" = --programs ]; then
  built=$(realpath -e "${2:?--programs needs a folder}")
  shift 2
fi
case ${FIPS-} in
  1) ;;
  '' | 0) unset FIPS ;;
  *) echo "FIPS=$FIPS is not supported: use 1 for the FIPS module, 0 or nothing for none" >&2; exit 1 ;;
esac
tag=${TAG:-$(awk -F'"' '/^version = / {print $2; exit}' Cargo.toml)}
tag=$tag${FIPS:+-fips}
prefix=${REGISTRY:+$REGISTRY/}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
export CARGO_TARGET_DIR=$target
out=$target/images
mkdir -p "$out"
PATH="$PATH:/usr/sbin"
. scripts/go.sh
if ! new_go; then
  echo "Go is missing or older than 1.21: install 1.26 or newer as go.dev/doc/install says" >&2
  exit 1
fi
(cd e2e/cluster && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$out/image-tool" .)
here=linux/$(go env GOHOSTARCH)
IFS=', ' read -ra platforms <<<"${PLATFORMS:-$here}"
if [ -n "$built" ] && [ "${platforms[*]}" != "$here" ]; then
  echo "--programs accepts only programs for $here, not for ${platforms[*]}: leave out PLATFORMS" >&2
  exit 1
fi

parts=$(mktemp -d "$out/.parts.XXXXXX")
trap 'rm -rf "$parts"' EXIT

image() { # name, user, file of the image=file of this machine ...
  local name=$1 user=$2; shift 2
  mkdir -p "$parts/$name"
  "$out/image-tool" image --platform "$platform" --root "$root" --name "$prefix$name:$tag" --user "$user" \
    --entrypoint "/$name" --out "$parts/$name/${platform#linux/}.tar" "$@"
  # Adds the image's bill of materials: our programs, and Debian's packages.
  local of_image files=() programs=()
  for of_image in "$@"; do
    files+=("${of_image#*=}") of_image=${of_image%%=*}
    [[ $of_image != /leno* ]] || programs+=("${of_image#/}")
  done
  scripts/bill.py image "$(uname_of "$platform")-unknown-linux-gnu" "$prefix$name:$tag" "${programs[@]}" \
    -- "${files[@]}" >"$out/$name-${platform#linux/}.cdx.json"
}

uname_of() { # platform
  case $1 in
    linux/amd64) echo x86_64 ;;
    linux/arm64) echo aarch64 ;;
  esac
}

for platform in "${platforms[@]}"; do
  binaries=${built:-$(scripts/programs.sh "$platform" "$@")}
  case $platform in
    "$here") root= ;;
    *) root=$(scripts/sysroot.sh "${platform#linux/}") ;;
  esac
  image leno-proxy 2102:2102 "/leno-proxy=$binaries/leno-proxy"
  image leno-controller 65532:65532 "/leno-controller=$binaries/leno-controller"

  # The multi-call program has one name for each of its commands.
  tools=("/usr/sbin/nft=$root/usr/sbin/nft")
  for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    tools+=("/usr/sbin/$name=$root/usr/sbin/${name/tables/tables-nft}")
  done
  for extension in "$root"/usr/lib/*-linux-gnu/xtables/*.so; do
    tools+=("${extension#"$root"}=$extension")
  done
  image leno-agent 0:0 "/leno-agent=$binaries/leno-agent" "/leno-cni=$binaries/leno-cni" "/leno-proxy=$binaries/leno-proxy" \
    "/leno-broker=$binaries/leno-broker" "${tools[@]}"

  # The image with the client and the services of `leno bench run --context`.
  image leno-bench 65532:65532 "/leno-bench=$binaries/leno-bench"
done

for name in leno-proxy leno-controller leno-agent leno-bench; do
  "$out/image-tool" index --out "$out/$name.tar" "$parts/$name"/*.tar
  printf '%s  %s  %s  %s\n' "$(du -h "$out/$name.tar" | cut -f1)" "$prefix$name:$tag" "${platforms[*]}" "$out/$name.tar"
done
