#!/usr/bin/env bash
# Checks the dependencies of Leno, and that its programs contain nothing else:
#
#   scripts/supply.sh check       the licences, sources and versions of dependencies, as deny.toml demands
#   scripts/supply.sh advisories  whether any is known to be vulnerable, according to RustSec's
#                                 database, if it can be fetched or was before
#   scripts/supply.sh reproduce   builds the optimised programs twice, as two users, in two folders with two homes of
#                                 Cargo, one after the other, and compares their bytes. PROGRAMS="leno-cni" builds these alone;
#                                 PROFILE=FILE is as in scripts/programs.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Sets `deny` to the path of cargo-deny; fails if it cannot be installed.
find_deny() {
  if ! deny=$(command -v cargo-deny); then
    scripts/tools.sh cargo-deny || return 1
    deny=${LENO_TOOLS:-${CARGO_TARGET_DIR:-target}/tools}/cargo-deny/bin/cargo-deny
  fi
}

leave_out() { # what is required for it, why
  [[ ",${LENO_REQUIRE:-}," != *,$1,* ]] || { echo "supply: $2, and LENO_REQUIRE has $1" >&2; exit 1; }
  echo "supply: left out: $2"
}

check() {
  find_deny || { leave_out tools "cargo-deny cannot be installed"; return; }
  "$deny" --log-level error check --hide-inclusion-graph licenses bans sources
}

advisories() {
  find_deny || { leave_out tools "cargo-deny cannot be installed"; return; }
  local log code=0
  log=$(mktemp)
  "$deny" check --hide-inclusion-graph advisories >"$log" 2>&1 || code=$?
  if [ "$code" != 0 ] && grep -q "failed to fetch advisory database" "$log"; then
    code=0
    "$deny" --offline check --hide-inclusion-graph advisories >"$log" 2>&1 || code=$?
    if ! grep -q "^advisories" "$log"; then
      rm "$log"
      leave_out advisories "RustSec's database cannot be fetched, and was not before"
      return
    fi
    echo "supply: RustSec's database cannot be fetched; this is the result with the database that was fetched last:"
  fi
  cat "$log"
  rm "$log"
  return "$code"
}

# Builds the programs from a copy of the sources, as another user whose files are in other folders.
build() { # folder, number of the user
  local sources=$1/sources home=$1/home
  mkdir -p "$sources" "$home/cargo"
  git ls-files -z | xargs -0 cp --parents --no-dereference --target-directory="$sources"
  # Downloaded packages are the same wherever they are, so they are shared.
  ln -sfn "${CARGO_HOME:-$HOME/.cargo}/registry" "$home/cargo/registry"
  local as=(env)
  [ "$(id -u)" != 0 ] || as=(unshare --user --map-user="$2" --map-group="$2" env)
  local rustup=${RUSTUP_HOME:-$HOME/.rustup} given=${PROFILE-} profile profiles=()
  for profile in ${given//,/ }; do
    cp "$profile" "$home"
    profiles+=("$home/${profile##*/}")
  done
  (cd "$sources" && "${as[@]}" -u RUSTFLAGS HOME="$home" USER="user$2" LOGNAME="user$2" CARGO_HOME="$home/cargo" \
    RUSTUP_HOME="$rustup" CARGO_TARGET_DIR="$1/built" CARGO_INCREMENTAL=0 SOURCE_DATE_EPOCH="$epoch" \
    PROFILE="${profiles[*]}" \
    scripts/programs.sh "linux/$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')")
}

reproduce() {
  local work one two
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  epoch=$(git log -1 --format=%ct)
  mkdir -p "$work/one" "$work/elsewhere/again"
  one=$(build "$work/one" 1001)
  two=$(build "$work/elsewhere/again" 2002)
  local program differs=0
  for program in "$one"/*; do
    if cmp "$program" "$two/${program##*/}"; then
      echo "--- PASS: ${program##*/}: $(sha256sum "$program" | cut -c1-16)..."
    else
      echo "--- FAIL: ${program##*/} differs" >&2
      differs=1
    fi
    if grep --quiet --fixed-strings --text "$work" "$program"; then
      echo "--- FAIL: ${program##*/} contains the path of the folder in which it was built" >&2
      differs=1
    fi
  done
  return "$differs"
}

case ${1-} in
  check) check ;;
  advisories) advisories ;;
  reproduce) reproduce ;;
  *) echo "scripts/supply.sh: use check, advisories or reproduce" >&2; exit 64 ;;
esac
