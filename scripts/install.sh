#!/bin/sh
# Installs a release of Leno: verifies its archive against SHA256SUMS, and unpacks it below a prefix. Nothing is compiled
# and nothing else is installed.
#
#   install.sh                              installs the archive in the folder of this script, below /usr/local
#   install.sh --from FOLDER_OR_URL         from there; over https with curl
#   install.sh --prefix ~/.local            another place, whose bin/ must be in PATH
#   install.sh --sha256 SUM                 also compares the sum of SHA256SUMS itself with one from another source
#   install.sh --uninstall                  removes what was installed below the prefix
set -eu

fail() { echo "install.sh: $*" >&2; exit 1; }

from=$(dirname "$0") prefix=/usr/local sum='' uninstall=''
while [ $# -gt 0 ]; do
  case $1 in
    --from | --prefix | --sha256)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case $1 in --from) from=$2 ;; --prefix) prefix=$2 ;; --sha256) sum=$2 ;; esac
      shift 2 ;;
    --uninstall) uninstall=yes; shift ;;
    --help | -h) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0"; exit ;;
    *) fail "unknown option $1: use --from, --prefix, --sha256 or --uninstall" ;;
  esac
done

# The files of the installation, one per line, relative to the prefix.
list=$prefix/share/leno/installed
remove() {
  while read -r file; do rm -f "$prefix/$file"; done <"$list"
  rm -f "$list"
  rmdir "$prefix/share/leno" "$prefix/share/doc/leno" 2>/dev/null || true
}
if [ -n "$uninstall" ]; then
  [ -e "$list" ] || fail "nothing is installed below $prefix: there is no $list"
  remove
  echo "Leno is removed from $prefix."
  exit
fi

case $(uname -s)-$(uname -m) in
  Linux-x86_64) architecture=amd64 ;;
  Linux-aarch64) architecture=arm64 ;;
  *) fail "Leno runs on Linux on amd64 and arm64, and this is $(uname -s) on $(uname -m)" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
get() { # file
  case $from in
    https://*) curl --fail --silent --show-error --location --proto '=https' --output "$work/$1" "$from/$1" ;;
    *://*) fail "$from does not begin with https://" ;;
    *) cp "$from/$1" "$work/$1" ;;
  esac || fail "cannot get $1 from $from"
}

get SHA256SUMS
if [ -n "$sum" ]; then
  echo "$sum  SHA256SUMS" | (cd "$work" && sha256sum --check --status) || fail "SHA256SUMS does not have the sum $sum"
fi
archive=$(sed -n "s/^[0-9a-f]\{64\}  \(leno-.*-linux-$architecture\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
case $archive in
  '') fail "SHA256SUMS lists no archive for $architecture" ;;
  *[!A-Za-z0-9._+~-]*) fail "SHA256SUMS lists several archives for $architecture, or an invalid name" ;;
esac
get "$archive"
grep -F "  $archive" "$work/SHA256SUMS" | (cd "$work" && sha256sum --check --status) ||
  fail "$archive is damaged or was changed: its sum differs from the one in SHA256SUMS. Nothing was installed"

mkdir -p "$prefix/share/leno" || fail "cannot write to $prefix: use sudo, or --prefix ~/.local"
mkdir "$work/new"
tar --extract --gzip --file "$work/$archive" --directory "$work/new" --strip-components=1 --no-same-owner
# An earlier version may have had files that this version lacks.
[ ! -e "$list" ] || remove
mkdir -p "$prefix/share/leno"
(cd "$work/new" && find . -type f | sed 's|^\./||' | sort) >"$list"
# Each file is replaced atomically, so a running program continues with the file that it has opened.
while read -r file; do
  mkdir -p "$prefix/$(dirname "$file")"
  cp -p "$work/new/$file" "$prefix/$file.new"
  mv "$prefix/$file.new" "$prefix/$file"
done <"$list"
echo "$("$prefix/bin/leno" version) is installed below $prefix. Begin with: sudo $prefix/bin/leno check"
