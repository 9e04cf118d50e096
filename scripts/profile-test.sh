#!/usr/bin/env bash
# Tests how a profile is made (scripts/profile.sh) and how a build uses one (scripts/programs.sh). It takes a minute, because it
# builds the small leno-broker in place of leno-proxy.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "--- FAIL: $1" >&2; exit 1; }
pass() { echo "--- PASS: $1"; }
case $(uname -m) in
  x86_64) platform=linux/amd64 ;;
  aarch64) platform=linux/arm64 ;;
esac
triple=$(uname -m)-unknown-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$(mkdir -p "${CARGO_TARGET_DIR:-target}/profile-test" && cd "${CARGO_TARGET_DIR:-target}/profile-test" && pwd)
raw=$folder/raw profile=$work/profile
rm -rf "$raw"
export PROGRAMS=leno-broker PROFILED=leno-broker CARGO_TARGET_DIR=$folder PROFILE=

program() { # its environment...: prints the path of a program that is built so
  local at
  at=$(env "$@" scripts/programs.sh "$platform" 2>"$work/said") || { cat "$work/said" >&2; exit 1; }
  echo "$at/leno-broker"
}

counting=$(program RUSTFLAGS="$(scripts/profile.sh counting "$raw")" CARGO_TARGET_DIR="$folder/counting")
"$counting" --help >/dev/null
"$counting" --version >/dev/null
scripts/profile.sh pack leno-broker "$triple" "$raw" "$profile"
said=$(tar --extract --to-stdout --file "$profile" of)
[[ $said == *"commit $(git rev-parse HEAD)"* && $said == *"triple $triple"* ]] || fail "a profile says what it is of: $said"
tar --extract --file "$profile" --directory "$work"
grep -q leno_broker "$work/order" || fail "a profile has the functions of the program in their order: $(head "$work/order")"
pass "a program that counts writes a profile when it ends"

plain=$(program)
cp "$plain" "$work/plain"
optimised=$(program PROFILE="$profile")
! grep -q PROFILE "$work/said" || fail "a profile of this commit and compiler is used without a word: $(cat "$work/said")"
"$optimised" --version >/dev/null
# The sections and addresses of these functions: within a section, the addresses must be in the order of the profile.
objdump --syms "$optimised" | awk '
  FNR == NR { if (!($1 in place)) place[$1] = FNR; next }
  $NF in place { print $4, place[$NF], $1 }' "$work/order" - | sort -k1,1 -k2,2n >"$work/placed"
[ "$(wc -l <"$work/placed")" -ge 2 ] || fail "functions of the profile are in the program: $(cat "$work/placed")"
awk '{print $1, $3}' "$work/placed" | sort --check || fail "functions are in the order of the profile"
cp "$optimised" "$work/optimised"
cmp --quiet "$work/optimised" "$work/plain" && fail "a profile changes the program"
pass "a program is optimised by a profile, its functions in the order of their first use"

[ "$(program PROFILE="$profile")" = "$optimised" ] && cmp "$optimised" "$work/optimised" || fail "the same profile yields the same bytes"
cmp "$(program)" "$work/plain" || fail "without a profile the program is as before"
pass "the same profile yields the same bytes, and none those without one"

# Writes a profile that claims another origin.
changed() { # expression for sed
  mkdir -p "$work/changed"
  sed "$1" "$work/of" >"$work/changed/of"
  ln -f "$work/profdata" "$work/order" "$work/changed"
  tar --create --gzip --directory "$work/changed" --file "$work/changed.profile" profdata order of
}
flags() { scripts/profile.sh flags leno-broker "$triple" "$1" >"$work/flags" 2>"$work/said"; }
changed 's/^commit .*/commit 0123/'
flags "$work/changed.profile" || fail "a profile of another commit is used: $(cat "$work/said")"
grep -q '^warning: .*commit 0123' "$work/said" && grep -q profile-use "$work/flags" || fail "a profile of another commit is warned of"
changed 's/^rustc .*/rustc 1.0.0/'
flags "$work/changed.profile" && grep -q '^warning: .*rustc 1.0.0' "$work/said" || fail "a profile of another compiler is warned of"
changed 's/^llvm .*/llvm 1.0/'
if flags "$work/changed.profile"; then fail "a profile of another LLVM is refused"; fi
grep -q 'make profile' "$work/said" || fail "the refusal says what to do: $(cat "$work/said")"
changed 's/^triple .*/triple riscv64gc-unknown-linux-gnu/'
flags "$work/changed.profile" && [ ! -s "$work/flags" ] && grep -q "no profile of $triple" "$work/said" ||
  fail "a profile of another architecture is not used"
flags "$work/changed.profile,$profile" && grep -q profile-use "$work/flags" || fail "of several profiles that of the architecture is used"
changed 's/^program .*/program leno-proxy/'
if flags "$work/changed.profile"; then fail "a profile of another program is refused"; fi
if flags "$work/of"; then fail "what is no profile is refused"; fi
if flags "$work/missing"; then fail "a profile that is not there is refused"; fi
if scripts/profile.sh pack leno-broker "$triple" "$work" "$work/none" 2>"$work/said"; then fail "a profile of nothing is refused"; fi
pass "a profile of something else is warned of, or refused"
