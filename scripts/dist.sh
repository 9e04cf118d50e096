#!/usr/bin/env bash
# Makes the files that a user without a compiler installs, in dist/ of the target directory:
#
#   leno-VERSION-linux-ARCH.tar.gz      programs, manual pages, completions, licences, a bill of materials for each program
#   leno_VERSION_ARCH.deb               the same as a package of Debian and Ubuntu
#   install.sh                          verifies an archive and unpacks it
#   FILE                                the profile by which leno-proxy was optimised, if there is one
#   SHA256SUMS                          the checksums of all these files
#
#   scripts/dist.sh                     optimised programs that load no library
#   scripts/dist.sh --debug             what `cargo build` makes, to test this script
#   FIPS=1 scripts/dist.sh              leno, leno-proxy and leno-controller with aws-lc's FIPS module; VERSION ends in +fips
#   PROFILE=FILE scripts/dist.sh        leno-proxy optimised by a profile of scripts/profile.sh; PROFILE=FILE,FILE for several
#                                       platforms
#
# The files are for this machine's architecture, or for those in PLATFORMS (linux/amd64,linux/arm64), which must include this
# machine's, because its `leno` writes the manual pages. TAG is the version; the default is that of Cargo.toml. Archives of
# the same commit have the same bytes if the compilers and the profile are the same.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${FIPS-} in
  1) ;;
  '' | 0) unset FIPS ;;
  *) echo "FIPS=$FIPS is not supported: use 1 for the FIPS module, 0 or nothing for none" >&2; exit 1 ;;
esac
version=${TAG:-$(awk -F'"' '/^version = / {print $2; exit}' Cargo.toml)}
version=${version#v}${FIPS:++fips}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
export CARGO_TARGET_DIR=$target
# The time of the files in archives, which is the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
case $(uname -m) in
  x86_64) here=linux/amd64 ;;
  aarch64) here=linux/arm64 ;;
  *) echo "programs can only be built on amd64 and arm64, and this machine is $(uname -m)" >&2; exit 1 ;;
esac
IFS=', ' read -ra platforms <<<"${PLATFORMS:-$here}"
[[ " ${platforms[*]} " == *" $here "* ]] || { echo "PLATFORMS must include $here, the platform of this machine" >&2; exit 1; }

draft=$(mktemp -d "$target/.dist.XXXXXX")
trap 'rm -rf "$draft"' EXIT
programs=(leno leno-proxy leno-broker leno-controller leno-bench)

declare -A built
for platform in "${platforms[@]}"; do
  built[$platform]=$(scripts/programs.sh "$platform" "$@")
done
leno=${built[$here]}/leno

# The files that are the same for all architectures, in the layout of a prefix such as /usr.
shared=$draft/shared
install -d "$shared"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d,man/man1,doc/leno}
"$leno" completion bash >"$shared/share/bash-completion/completions/leno"
"$leno" completion zsh >"$shared/share/zsh/site-functions/_leno"
"$leno" completion fish >"$shared/share/fish/vendor_completions.d/leno.fish"
"$leno" man "$shared/share/man/man1"
gzip --no-name --best "$shared"/share/man/man1/*.1
install -m 644 README.md CHANGELOG.md LICENSE "$shared/share/doc/leno"

triple_of() { # platform
  case $1 in
    linux/amd64) echo x86_64-unknown-linux-gnu ;;
    linux/arm64) echo aarch64-unknown-linux-gnu ;;
  esac
}

# Makes a tar archive whose bytes depend only on the files.
archive() { # folder, its entries...
  tar --create --directory "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX "${@:2}" | gzip --no-name
}

package() { # architecture, folder of the prefix: prints a .deb
  local root=$draft/deb-$1
  install -d "$root/DEBIAN" "$root/usr"
  cp -a "$2/." "$root/usr"
  mv "$root/usr/share/doc/leno/LICENSE" "$root/usr/share/doc/leno/copyright"
  # In this folder, Debian's zsh looks for the completions of packages.
  mkdir "$root/usr/share/zsh/vendor-completions"
  mv "$root"/usr/share/zsh/site-functions/_leno "$root/usr/share/zsh/vendor-completions"
  rmdir "$root/usr/share/zsh/site-functions"
  cat >"$root/DEBIAN/control" <<END
Package: leno
Version: $version
Architecture: $1
Maintainer: The Leno authors <leno@localhost>
Installed-Size: $(du --apparent-size -ks "$root/usr" | cut -f1)
Suggests: nftables, iptables
Section: net
Priority: optional
Description: service mesh for one machine or many${FIPS:+ (FIPS module)}
 Leno encrypts, authenticates, balances and measures the traffic between
 services without changing them. Processes run as workloads, each in its own
 network namespace, from the same documents that Kubernetes takes.
END
  find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$root" "$draft/out/leno_${version}_$1.deb" >/dev/null
}

mkdir "$draft/out"
for platform in "${platforms[@]}"; do
  architecture=${platform#linux/} name=leno-$version-linux-${platform#linux/}
  prefix=$draft/$architecture/$name
  mkdir -p "$prefix/bin"
  cp -a "$shared/share" "$prefix"
  for program in "${programs[@]}"; do install -m 755 "${built[$platform]}/$program" "$prefix/bin"; done
  triple=$(triple_of "$platform")
  for program in "${programs[@]}"; do
    scripts/bill.py sbom "$triple" "$program" >"$prefix/share/doc/leno/$program.cdx.json"
  done
  scripts/bill.py licences "$triple" "${programs[@]}" | gzip --no-name --best \
    >"$prefix/share/doc/leno/THIRD-PARTY-LICENSES.gz"
  archive "$draft/$architecture" "$name" >"$draft/out/$name.tar.gz"
  if command -v dpkg-deb >/dev/null; then
    package "$architecture" "$prefix"
  else
    echo "no .deb is made: dpkg-deb is missing" >&2
  fi
done
install -m 755 scripts/install.sh "$draft/out/install.sh"
# Included so that users can build the same bytes.
profiles=${PROFILE-}
for profile in ${profiles//,/ }; do install -m 644 "$profile" "$draft/out"; done
(cd "$draft/out" && sha256sum -- * >"$draft/sums" && mv "$draft/sums" SHA256SUMS)
rm -rf "$target/dist"
mv "$draft/out" "$target/dist"
(cd "$target/dist" && du -h -- *)
