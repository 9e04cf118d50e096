#!/usr/bin/env bash
# Makes the profile by which leno-proxy is optimised, and tells a build how to use it (docs/decisions/212-profile-guided.md):
#
#   scripts/profile.sh make FILE [PROGRAMS]          builds a leno-proxy that counts what it executes, has it carry traffic (as root)
#                                                    beside the other programs in the folder PROGRAMS (target/release), and writes FILE
#   scripts/profile.sh counting RAW                  prints the flags of the compiler for a program that counts, into the folder RAW
#   scripts/profile.sh pack PROGRAM TRIPLE RAW FILE  writes FILE from these counters
#   scripts/profile.sh flags PROGRAM TRIPLE FILE,... prints the flags of the compiler for a program by its profile
#
# FILE is an archive of `profdata`, what was counted, in the format of the compiler's LLVM; `order`, the functions in the order of their
# first use, for the linker; `of`, what it is a profile of. FIPS=1: of a program with aws-lc's FIPS module.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "$1" >&2; exit 1; }
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
draft=$(mktemp -d)
chmod 755 "$draft" # Workloads run programs that are in it.
trap 'rm -rf "$draft"' EXIT

of_compiler() { # host, release or LLVM version
  rustc -vV | sed -n "s/^$1: //p"
}

commit() {
  git rev-parse HEAD 2>/dev/null || echo unknown
}

# Each process writes its counters when it ends in order, into a folder of its own: processes of several users count.
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
  [ ${#raw[@]} -gt 0 ] || fail "$1 has written no counters below $3: it does so when it ends in order, and may write there"
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
    [ -f "$file" ] || fail "PROFILE: there is no file $file"
    said=$(tar --extract --to-stdout --file "$file" of 2>/dev/null) || fail "PROFILE: $file is no profile of scripts/profile.sh"
    of() { sed -n "s/^$1 //p" <<<"$said"; }
    [ "$(of program)" = "$1" ] || fail "PROFILE: $file is a profile of $(of program), and not of $1"
    [ "$(of triple)" = "$2" ] || continue
    if [ "$(of llvm)" != "$(of_compiler 'LLVM version')" ]; then
      fail "PROFILE: $file was made with LLVM $(of llvm), and this compiler has $(of_compiler 'LLVM version'): make it again (make profile), or build without it"
    fi
    warn "$file" rustc "$(of rustc)" "$(of_compiler release) $(of_compiler commit-hash)"
    warn "$file" commit "$(of commit)" "$(commit)"
    warn "$file" fips "$(of fips)" "${FIPS:-0}"
    # In a folder that is named by the content, so that Cargo notices another one.
    kept=$target/profiled/by-$(sha256sum "$file" | cut -c1-16)
    mkdir -p "$kept"
    tar --extract --file "$file" --directory "$kept"
    # The linker orders the hot functions, the others, and those that were never executed each by themselves.
    echo "-Cprofile-use=$kept/profdata" \
      "-Clink-arg=-Wl,--symbol-ordering-file=$kept/order,--no-warn-symbol-ordering,-z,keep-text-section-prefix"
    return
  done
  echo "PROFILE: $3 has no profile of $2: $1 is built without one for it" >&2
}

# Functions have the compiler, the version of Leno and the features in their names, and a profile has a hash of what each does.
warn() { # file, what, of the profile, of this build
  [ "$3" = "$4" ] || echo "warning: PROFILE: $1 is of $2 $3, and this build of $4: functions that differ are not optimised by it" >&2
}

make() { # file, folder of the other programs
  local triple platform raw counted programs=$draft/programs program
  triple=$(of_compiler host)
  case $triple in
    x86_64-*) platform=linux/amd64 ;;
    aarch64-*) platform=linux/arm64 ;;
    *) fail "profiles are made on amd64 and arm64, and this machine is $triple" ;;
  esac
  find_profdata
  # Where it counts into is in the program. Proxies of a mesh are of another user, who cannot enter a home.
  raw=/var/tmp/leno-profile-$(cksum <<<"$PWD" | cut -d' ' -f1)
  scripts/as-root.sh rm -rf "$raw"
  mkdir -m 1733 "$raw"
  counted=$(RUSTFLAGS="${RUSTFLAGS-} $(counting "$raw")" CARGO_TARGET_DIR=$target/counting PROGRAMS=leno-proxy PROFILE='' \
    scripts/programs.sh "$platform")
  # Copies: each finds the others beside the file that it is.
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
