#!/usr/bin/env bash
# Installs what building and testing need through apt when run as root; otherwise prints the exact
# command to type. Prints nothing and costs milliseconds when everything is there.
#
#   scripts/deps.sh            what every target of make needs
#   scripts/deps.sh images     what scripts/images.sh needs, which says itself which Go that is
set -euo pipefail

rust_min=1.95
declare -A package_of=(
  [cc]=gcc [clang]=clang [llvm-strip]=llvm [mold]=mold [pkg-config]=pkg-config [cmake]=cmake
  [nft]=nftables [iptables-restore]=iptables
)
declare -A package_with=(
  [/usr/include/bpf/bpf_helpers.h]=libbpf-dev [/usr/include/libelf.h]=libelf-dev
  [/usr/include/zlib.h]=zlib1g-dev
)
[ "${1-}" = images ] || package_of+=(
  [ip]=iproute2 [tcpdump]=tcpdump [curl]=curl
  [nginx]=nginx-light [redis-server]=redis-server [mariadbd]=mariadb-server [psql]=postgresql
  [haproxy]=haproxy [wrk]=wrk [python3]=python3 [openssl]=openssl [dig]=dnsutils
  [h2load]=nghttp2-client [go]=golang [pip3]=python3-pip [node]=nodejs [npm]=npm [prometheus]=prometheus
  [rsvg-convert]=librsvg2-bin
)
[ "${1-}" = images ] || package_with+=(
  [/usr/lib/nginx/modules/ngx_stream_module.so]=libnginx-mod-stream
)

PATH="$PATH:/usr/sbin:/sbin:/usr/local/go/bin"
missing=()
for command in "${!package_of[@]}"; do
  command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
for file in "${!package_with[@]}"; do
  [ -e "$file" ] || missing+=("${package_with[$file]}")
done

if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    "$(dirname "$0")/apt-install.sh" "${missing[@]}"
  else
    printf 'Some programs are missing. Type:\n\n  sudo sh -c "%s"\n\n' "$install" >&2
    exit 1
  fi
fi

have=$(cargo --version 2>/dev/null | awk '{print $2}') || true
if [ -z "$have" ] || [ "$(printf '%s\n' "$rust_min" "$have" | sort -V | head -1)" != "$rust_min" ]; then
  cat >&2 <<EOF
Rust $rust_min or newer is needed (found: ${have:-none}). Install it as rustup.rs says, or type:

  rustup update stable

EOF
  exit 1
fi
