#!/usr/bin/env bash
# Installs the programs and headers that a target of make needs, through apt or dnf, when run as root; otherwise
# prints the command to type. If nothing is missing, prints nothing and takes milliseconds.
#
#   scripts/deps.sh build [TARGET]     compilers and headers; messages name TARGET as the target of make
#   scripts/deps.sh fips      those of build, and the programs that build the FIPS module of aws-lc
#   scripts/deps.sh demo      those of build, and the programs of the demo: Redis, ip, nft
#   scripts/deps.sh lint      those of build, and Go
#   scripts/deps.sh images    those of build, nft and iptables; scripts/images.sh itself checks for Go
#   scripts/deps.sh bench     those of demo, and the proxies and load generators of benches
#   scripts/deps.sh kernels   those of build, and the programs that boot Debian's kernels and run tests in them
#   scripts/deps.sh test      those of bench, and all servers and clients of tests
#
# For `test` without root, only the programs of `build` are required. A test whose server is missing is skipped, and
# reports that.
set -euo pipefail

rust_min=1.95
purpose=${1:-test}

# The columns are: a program or file, the package of Debian and Ubuntu that contains it, and Fedora's package. "-"
# means that Fedora has none.
build='
  cc gcc gcc
  clang clang clang
  llvm-strip llvm llvm
  mold mold mold
  pkg-config pkg-config pkgconf-pkg-config
  make make make
  cmake cmake cmake
  /usr/include/bpf/bpf_helpers.h libbpf-dev libbpf-devel
  /usr/include/libelf.h libelf-dev elfutils-libelf-devel
  /usr/include/zlib.h zlib1g-dev zlib-ng-compat-devel'
demo="$build
  ip iproute2 iproute
  nft nftables nftables
  redis-server redis-server redis"
lint="$build
  go golang golang"
fips="$build
  go golang golang
  perl perl perl"
images="$build
  nft nftables nftables
  iptables-restore iptables iptables-nft"
kernels="$build
  qemu-system-x86_64 qemu-system-x86 qemu-system-x86-core
  busybox busybox-static busybox
  /etc/protocols netbase setup
  ip iproute2 iproute
  dpkg-deb dpkg dpkg
  xz xz-utils xz
  zstd zstd zstd
  /usr/bin/pydoc3 python3 python3
  tc iproute2 iproute-tc
  nft nftables nftables
  iptables-restore iptables iptables-nft
  curl curl curl
  redis-server redis-server redis
  redis-cli redis-tools redis"
bench="$demo
  nginx nginx-light nginx-core
  haproxy haproxy haproxy
  wrk wrk wrk
  h2load nghttp2-client nghttp2
  pip3 python3-pip python3-pip"
test="$bench
  iptables-restore iptables iptables-nft
  tcpdump tcpdump tcpdump
  curl curl curl
  /usr/lib/nginx/modules/ngx_stream_module.so libnginx-mod-stream nginx-mod-stream
  redis-cli redis-tools redis
  mariadbd mariadb-server mariadb-server
  mariadb mariadb-client mariadb
  psql postgresql postgresql-server
  pgbench postgresql postgresql-contrib
  python3 python3 python3
  flask python3-flask python3-flask
  java default-jdk-headless java-latest-openjdk-headless
  openssl openssl openssl
  dig bind9-dnsutils bind-utils
  go golang golang
  node nodejs nodejs
  npm npm npm
  chromium chromium chromium
  zsh zsh zsh
  fish fish fish
  sudo sudo sudo
  prometheus prometheus golang-github-prometheus
  containerd containerd containerd
  rsvg-convert librsvg2-bin librsvg2-tools"

case $purpose in
  build) wanted=$build ;;
  fips) wanted=$fips ;;
  images) wanted=$images ;;
  demo) wanted=$demo ;;
  bench) wanted=$bench ;;
  lint) wanted=$lint ;;
  kernels) wanted=$kernels ;;
  test) wanted=$test ;;
  *) echo "scripts/deps.sh: unknown purpose $purpose: use build, fips, demo, bench, lint, images, kernels or test" >&2; exit 64 ;;
esac

PATH="$PATH:/usr/sbin:/sbin:/usr/local/go/bin"

# Prints the packages that this machine lacks, of the programs and files in the table on standard input.
missing_of() {
  local what debian fedora
  while read -r what debian fedora; do
    case $what in
      '') continue ;;
      /*) [ ! -e "$what" ] && [ ! -e "/usr/lib64/${what#/usr/lib/}" ] || continue ;;
      *) ! command -v "$what" >/dev/null || continue ;;
    esac
    if command -v apt-get >/dev/null; then echo "$debian"; else echo "$fedora"; fi
  done | sort -u | grep -vx -- - || true
}

mapfile -t missing < <(missing_of <<<"$wanted")
if [ ${#missing[@]} -gt 0 ]; then
  # Prints the command that installs packages.
  typed() { # packages...
    if command -v apt-get >/dev/null; then
      printf '\n  sudo sh -c "apt-get update && apt-get install -y --no-install-recommends %s"\n' "$*"
    elif command -v dnf >/dev/null; then
      printf '\n  sudo dnf install -y %s\n' "$*"
    else
      printf '\n  (install these packages with your package manager; these are Fedora names) %s\n' "$*"
    fi
  }
  mapfile -t needed < <(missing_of <<<"$build")
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    "$(dirname "$0")/apt-install.sh" "${missing[@]}"
  elif [ "$(id -u)" = 0 ] && command -v dnf >/dev/null; then
    dnf install -y -q "${missing[@]}"
  elif [ "$purpose" = test ]; then
    if [ ${#needed[@]} -gt 0 ]; then
      echo "make test needs a compiler and headers that are missing. Type this, and then make test again:"
      typed "${needed[@]}"
      echo
    fi >&2
    if [ ${#missing[@]} -gt ${#needed[@]} ]; then
      echo "Tests whose programs are missing are skipped, and listed at the end. To run them, type:"
      typed "${missing[@]}"
      echo
    fi >&2
    [ ${#needed[@]} -eq 0 ] || exit 1
  else
    echo "make ${2:-$purpose} needs programs that are missing. Type:" >&2
    typed "${missing[@]}" >&2
    echo >&2
    exit 1
  fi
fi

mapfile -t needed < <(missing_of <<<"$build")
[ ${#needed[@]} -eq 0 ] || { echo "these packages are required for every build, and still missing: ${needed[*]}" >&2; exit 1; }

have=$(cargo --version 2>/dev/null | awk '{print $2}') || true
if [ -z "$have" ] || [ "$(printf '%s\n' "$rust_min" "$have" | sort -V | head -1)" != "$rust_min" ]; then
  echo "Rust $rust_min or newer is needed (found: ${have:-none})." >&2
  if [ -n "${SUDO_USER-}" ] && [ -x "$(getent passwd "$SUDO_USER" | cut -d: -f6)/.cargo/bin/cargo" ]; then
    printf 'The one of %s is not in the PATH of sudo. Type:\n\n  sudo env PATH=$PATH make %s\n\n' "$SUDO_USER" "${2:-$purpose}" >&2
  elif command -v rustup >/dev/null; then
    printf 'Type:\n\n  rustup update stable\n\n' >&2
  else
    printf 'Install it as rustup.rs describes: type this, then open a new shell:\n\n  %s\n\n' \
      "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
  fi
  exit 1
fi
