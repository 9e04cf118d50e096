#!/usr/bin/env bash
# The RUSTC_WORKSPACE_WRAPPER of scripts/programs.sh: links the programs that load no library so. RUSTFLAGS would
# say it of a whole build, and the agent loads libelf: two builds take twice as long. LENO_PACKED_RELOCATIONS: their glibc
# applies packed relative relocations.
flags=(-C target-feature=+crt-static)
[ -z "${LENO_PACKED_RELOCATIONS-}" ] || flags+=(-C link-arg=-Wl,-z,pack-relative-relocs)
# A program that counts for a profile (scripts/profile.sh) would keep functions that nothing calls, some of which name symbols by
# the versions that glibc has as a library alone.
case "$*" in *-Cprofile-generate=*) flags+=(-C link-arg=-Wl,--gc-sections) ;; esac
for name in leno_proxy leno_broker leno_controller leno_cni leno leno_bench; do
  case "$*" in *"--crate-name $name "*"--crate-type bin"*) set -- "$@" "${flags[@]}" ;; esac
done
exec "$@"
