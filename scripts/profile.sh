#!/usr/bin/env bash
# Records the profile with which the compiler optimises leno-proxy, and prints the flags that use it
# (docs/decisions/212-profile-guided.md):
#
#   scripts/profile.sh make FILE [PROGRAMS]          builds a leno-proxy that counts how often it executes each part of its code,
#                                                    sends traffic through it (as root) with the other programs in the folder
#                                                    PROGRAMS (target/release by default), and writes FILE
#   scripts/profile.sh counting RAW                  prints the compiler flags for a program that writes such counters into RAW
#   scripts/profile.sh pack PROGRAM TRIPLE RAW FILE  writes FILE from the counters in RAW
#   scripts/profile.sh flags PROGRAM TRIPLE FILE,... prints the compiler flags that optimise a program by the profile of its
#                                                    architecture
#
# FILE is an archive of three files: `profdata` has the counters in the format of the compiler's LLVM, `order` the functions in
# the order of their first use, for the linker, and `of` the program, architecture, commit and compiler. With FIPS=1 the
# profile is for a program with aws-lc's FIPS module.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "$1" >&2; exit 1; }
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
draft=$(mktemp -d)
chmod 755 "$draft" # Workloads run as other users, and their programs are in it.
trap 'rm -rf "$draft"' EXIT

of_compiler() { # host, release or LLVM version
  rustc -vV | sed -n "s/^$1: //p"
}

commit() {
  git rev-parse HEAD 2>/dev/null || echo unknown
}

# Each process writes its counters when it exits normally. %p gives each its own folder, because processes of several users
# write counters.
counting() { # folder
  echo "-Cprofile-generate=$1/%p -Cllvm-args=-pgo-temporal-instrumentation"
}

# The llvm-profdata of the compiler, or a distribution's of the same major version of LLVM: patch releases do not change the format,
# and llvm-profdata refuses counters of another.
find_profdata() {
  local major
  profdata=$(rustc --print sysroot)/lib/rustlib/$(of_compiler host)/bin/llvm-profdata
  if [ ! -x "$profdata" ] && command -v rustup >/dev/null; then rustup component add llvm-tools >&2 || true; fi
  [ ! -x "$profdata" ] || return 0
  major=$(of_compiler 'LLVM version' | cut -d. -f1)
  profdata=$(command -v "llvm-profdata-$major") ||
    fail "the compiler's llvm-profdata is missing: rustup component add llvm-tools, or install llvm-$major of your distribution"
}

pack() { # program, triple, folder of counters, file
  local raw=()
  find_profdata
  mapfile -d '' raw < <(find "$3" -name '*.profraw' -print0)
  [ ${#raw[@]} -gt 0 ] || fail "$1 has written no counters below $3: it must exit normally, and needs permission to write there"
  "$profdata" merge --output "$draft/profdata" "${raw[@]}"
  "$profdata" order "$draft/profdata" | sed '/^#/d' >"$draft/order"
  cat >"$draft/of" <<END
program $1
triple $2
fips ${FIPS:-0}
commit $(commit)
rustc $(of_compiler release) $(of_compiler commit-hash)
llvm $(of_compiler 'LLVM version')
END
  mkdir -p "$(dirname "$4")"
  tar --create --directory "$draft" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner profdata order of |
    gzip --no-name --best >"$draft/packed"
  mv "$draft/packed" "$4"
}

flags() { # program, triple, files
  local file said kept
  for file in ${3//,/ }; do
    [ -f "$file" ] || fail "PROFILE: $file does not exist"
    said=$(tar --extract --to-stdout --file "$file" of 2>/dev/null) || fail "PROFILE: $file was not written by scripts/profile.sh"
    of() { sed -n "s/^$1 //p" <<<"$said"; }
    [ "$(of program)" = "$1" ] || fail "PROFILE: $file is a profile of $(of program), not of $1"
    [ "$(of triple)" = "$2" ] || continue
    if [ "$(of llvm)" != "$(of_compiler 'LLVM version')" ]; then
      fail "PROFILE: $file was made with LLVM $(of llvm), and this compiler has $(of_compiler 'LLVM version'): make it again (make profile), or build without it"
    fi
    warn "$file" rustc "$(of rustc)" "$(of_compiler release) $(of_compiler commit-hash)"
    warn "$file" commit "$(of commit)" "$(commit)"
    warn "$file" fips "$(of fips)" "${FIPS:-0}"
    # The folder is named after the content, so that Cargo builds again with another profile.
    kept=$target/profiled/by-$(sha256sum "$file" | cut -c1-16)
    mkdir -p "$kept"
    tar --extract --file "$file" --directory "$kept"
    # keep-text-section-prefix: the linker orders hot functions, other functions and functions that were never executed
    # separately.
    echo "-Cprofile-use=$kept/profdata" \
      "-Clink-arg=-Wl,--symbol-ordering-file=$kept/order,--no-warn-symbol-ordering,-z,keep-text-section-prefix"
    return
  done
  echo "PROFILE: $3 contains no profile for $2: $1 is built without a profile" >&2
}

# Warns if the profile is of another compiler, commit or set of features. Functions whose code or name differs then have no
# counters.
warn() { # file, what, of the profile, of this build
  [ "$3" = "$4" ] || echo "warning: PROFILE: $1 was made with $2 $3, and this build has $4: functions that differ are not optimised" >&2
}

make() { # file, folder of the other programs
  local triple platform raw counted programs=$draft/programs program
  triple=$(of_compiler host)
  case $triple in
    x86_64-*) platform=linux/amd64 ;;
    aarch64-*) platform=linux/arm64 ;;
    *) fail "profiles can only be made on amd64 and arm64, and this machine is $triple" ;;
  esac
  find_profdata
  # The program contains the path of this folder. It is not in a home, which the user of a mesh's proxies cannot enter.
  raw=/var/tmp/leno-profile-$(cksum <<<"$PWD" | cut -d' ' -f1)
  scripts/as-root.sh rm -rf "$raw"
  mkdir -m 1733 "$raw"
  counted=$(RUSTFLAGS="${RUSTFLAGS-} $(counting "$raw")" CARGO_TARGET_DIR=$target/counting PROGRAMS=leno-proxy PROFILE='' \
    scripts/programs.sh "$platform")
  # Copies and not links, because each program looks for the others in the folder of its own file.
  mkdir "$programs"
  for program in leno leno-broker leno-controller leno-bench leno-peer leno-load; do
    cp "$2/$program" "$programs" || fail "$2 has no $program: make release"
  done
  cp "$counted/leno-proxy" "$programs"
  scripts/as-root.sh scripts/apart.sh scripts/profile-train.sh "$programs"
  pack leno-proxy "$triple" "$raw" "$1"
  scripts/as-root.sh rm -rf "$raw"
  du -h "$1"
}

case ${1-}:$# in
  make:2 | make:3) make "$2" "${3:-$target/release}" ;;
  counting:2) counting "$2" ;;
  pack:5) pack "${@:2}" ;;
  flags:4) flags "${@:2}" ;;
  *) sed -n '2,/^set/p' "$0" | sed '$d' >&2; exit 64 ;;
esac
