#!/usr/bin/env bash
# Builds the programs of images and archives for one platform, and prints their folder:
#
#   scripts/programs.sh linux/arm64             optimised; only leno-agent loads libraries
#   scripts/programs.sh linux/arm64 --debug     what `cargo build` makes, with the libraries that it loads
#
# PROGRAMS="leno-proxy leno-cni" builds only these. FIPS=1 builds the programs that terminate TLS with aws-lc's FIPS module.
# PROFILE=FILE,... names profiles by which leno-proxy is optimised (scripts/profile.sh), each for one architecture. leno-proxy is
# then built separately, because its profile marks code that only other programs run as never executed. PROFILED names
# another program in place of leno-proxy, for tests.
#
# For another architecture than this machine's, clang compiles C and links, with Debian's libraries of that
# architecture (scripts/sysroot.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

case ${FIPS-} in
  1) ;;
  '' | 0) unset FIPS ;;
  *) echo "FIPS=$FIPS is not supported: use 1 for the FIPS module, 0 or nothing for none" >&2; exit 1 ;;
esac
platform=$1 profile=release flags=(--release)
[ "${2-}" != --debug ] || profile=debug flags=()
case $platform in
  linux/amd64) machine=x86_64 ;;
  linux/arm64) machine=aarch64 ;;
  *) echo "$platform is not supported: use linux/amd64 or linux/arm64" >&2; exit 1 ;;
esac

host=$(rustc -vV | awk '/^host: / {print $2}') triple=$host
[ "${host%%-*}" = $machine ] || triple=$machine-unknown-linux-gnu

read -ra programs <<<"${PROGRAMS:-leno-proxy leno-broker leno-controller leno-cni leno-agent leno leno-bench}"
target=${CARGO_TARGET_DIR:-target} profiled=${PROFILED:-leno-proxy} apart=
if [ -n "${PROFILE-}" ] && [[ " ${programs[*]} " == *" $profiled "* ]]; then
  by_profile=$(scripts/profile.sh flags "$profiled" "$triple" "$PROFILE")
  if [ -n "$by_profile" ]; then
    apart=$(PROFILE='' PROGRAMS=$profiled RUSTFLAGS="${RUSTFLAGS-} $by_profile" CARGO_TARGET_DIR=$target/profiled \
      scripts/programs.sh "$@")
    for at in "${!programs[@]}"; do [ "${programs[at]}" != "$profiled" ] || unset "programs[at]"; done
  fi
fi

if [ "$triple" != "$host" ]; then
  gnu=$machine-linux-gnu
  if [ ! -d "$(rustc --print target-libdir --target "$triple")" ]; then
    command -v rustup >/dev/null || { echo "Rust's standard library for $triple is missing: install it in the way in which Rust was installed" >&2; exit 1; }
    rustup target add "$triple" >&2
  fi
  root=$(scripts/sysroot.sh "${platform#linux/}")
  underscored=${triple//-/_}
  export "CC_$underscored=clang" "AR_$underscored=llvm-ar" "CFLAGS_$underscored=--target=$gnu --sysroot=$root"
  export "CARGO_TARGET_${underscored^^}_LINKER=clang" LENO_SYSROOT=$root
  export RUSTFLAGS="${RUSTFLAGS-} -Clink-arg=--target=$gnu -Clink-arg=--sysroot=$root"
fi
if [ "$triple" != "$host" ] || [ $machine = aarch64 ]; then
  # rustup's Rust contains lld, which is used for linking. mold is not used, even if arm64 is this machine's own
  # architecture: Debian 12's mold (1.10) lays out the thread-local variables of static arm64 programs so that the
  # programs crash at once.
  lld=$(rustc --print sysroot)/lib/rustlib/$host/bin/gcc-ld
  if ! [ -x "$lld/ld.lld" ] && ! command -v ld.lld >/dev/null; then
    echo "lld is missing, which links programs for arm64 and for other architectures: apt-get install lld" >&2
    exit 1
  fi
  export RUSTFLAGS="${RUSTFLAGS-} -Clink-arg=-fuse-ld=lld -Clink-arg=-B$lld"
fi
if [ "$profile" = release ]; then
  # A name and not a path: Cargo includes the wrapper in the hashes of symbols, which must not depend on the folder.
  export PATH=$PWD/scripts:$PATH RUSTC_WORKSPACE_WRAPPER=static-rustc.sh
  compiler=(cc)
  [ "$triple" = "$host" ] || compiler=(clang "--target=$gnu" "--sysroot=$root")
  for library in libelf.a libz.a; do
    file=$("${compiler[@]}" "-print-file-name=$library")
    [ "$file" != "$library" ] && continue
    echo "$library is missing: install Debian's libelf-dev and zlib1g-dev, or Fedora's elfutils-libelf-devel-static and" \
      "zlib-ng-compat-static" >&2
    exit 1
  done
  # A static program applies its own relocations, and glibc can apply packed ones since 2.36. For leno-proxy, that
  # is 1 MB less to read at each start (decision 139).
  minor=$(echo '#include <features.h>' | "${compiler[@]}" -E -dM - | awk '$2 == "__GLIBC_MINOR__" {print $3}')
  [ "${minor:-0}" -lt 36 ] || export LENO_PACKED_RELOCATIONS=1
  # Since 0.189, libelf can read sections that were compressed with zstd, so libzstd must be linked.
  if grep -q ZSTD_decompress "$("${compiler[@]}" -print-file-name=libelf.a)"; then
    export RUSTFLAGS="${RUSTFLAGS-} -Clink-arg=-l:libzstd.a"
  fi
fi
if [ "$profile" = release ]; then
  # Removes the paths of the sources, of the packages and of the target directory from the program, so that the same
  # sources yield the same bytes in every folder.
  built_in=$(mkdir -p "$target" && cd "$target" && pwd)
  for place in "$PWD=/leno" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$built_in=/target"; do
    RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$place"
    maps="${maps-} -ffile-prefix-map=$place"
  done
  export RUSTFLAGS "CFLAGS_${triple//-/_}=$(printenv "CFLAGS_${triple//-/_}" || true)$maps"
fi
# --target is always given, because then these flags do not apply to build scripts and macros.
with=() without=()
if [ -n "${FIPS-}" ]; then
  # Builds the module from the sources in the crate, instead of using a library of this machine.
  export AWS_LC_FIPS_SYS_USE_SYSTEM=0
  for program in "${programs[@]}"; do
    case $program in
      leno | leno-proxy | leno-controller) with+=("--package=$program" --features "$program/fips") ;;
      *) without+=("--package=$program") ;;
    esac
  done
else
  without=("${programs[@]/#/--package=}")
fi
# Features apply to all programs of one build, so programs without the module are built separately.
for packages in with without; do
  declare -n chosen=$packages
  [ "${#chosen[@]}" = 0 ] || cargo build "${flags[@]}" --target "$triple" --bins "${chosen[@]}" >&2
done
folder=$target/$triple/$profile
mkdir -p "$folder"
for program in "${programs[@]}"; do
  [ "$profile" = release ] || break
  [ "$program" != leno-agent ] || continue
  # This is a separate command, so that the script ends if readelf is missing or cannot read the file.
  headers=$(readelf --program-headers "$folder/$program")
  if [[ $headers == *INTERP* ]]; then
    echo "$folder/$program loads libraries: it was not linked by scripts/static-rustc.sh" >&2
    exit 1
  fi
done
if [ "$profile" = release ]; then
  # Each program contains a list of its dependencies, for tools that look for vulnerable ones. The objcopy of
  # rustup's Rust can process programs of all architectures.
  sysroot=$(rustc --print sysroot)
  objcopy=(env "LD_LIBRARY_PATH=$sysroot/lib" "$sysroot/lib/rustlib/$host/bin/rust-objcopy")
  [ -x "${objcopy[2]}" ] || objcopy=(llvm-objcopy)
  mkdir -p "$folder/shipped"
  for program in "${programs[@]}"; do
    scripts/bill.py audit "$triple" "$program" >"$folder/shipped/parts"
    "${objcopy[@]}" --add-section ".dep-v0=$folder/shipped/parts" --set-section-flags .dep-v0=noload,readonly \
      "$folder/$program" "$folder/shipped/$program"
  done
  rm -f "$folder/shipped/parts"
  folder=$folder/shipped
fi
# The next build without a profile replaces this copy by its own program.
[ -z "$apart" ] || cp --remove-destination "$apart/$profiled" "$folder"
echo "$folder"
