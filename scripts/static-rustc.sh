#!/usr/bin/env bash
# The RUSTC_WORKSPACE_WRAPPER of scripts/programs.sh. It links statically those programs that load no library.
# RUSTFLAGS would apply to a whole build, but the agent loads libelf, and two separate builds would take twice as
# long. LENO_PACKED_RELOCATIONS means that the programs' glibc can apply packed relative relocations.
flags=(-C target-feature=+crt-static)
[ -z "${LENO_PACKED_RELOCATIONS-}" ] || flags+=(-C link-arg=-Wl,-z,pack-relative-relocs)
# A program with counters for a profile (scripts/profile.sh) would keep functions that are never called. Some of them refer to
# versions of symbols that only the dynamic glibc has.
case "$*" in *-Cprofile-generate=*) flags+=(-C link-arg=-Wl,--gc-sections) ;; esac
for name in leno_proxy leno_broker leno_controller leno_cni leno leno_bench; do
  case "$*" in *"--crate-name $name "*"--crate-type bin"*) set -- "$@" "${flags[@]}" ;; esac
done
exec "$@"
