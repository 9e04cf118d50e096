#!/usr/bin/env bash
# Tests the files of scripts/dist.sh: install.sh installs the archive and its programs run; it refuses an archive that was
# changed; it removes the files that it installed; the .deb has the same programs; a program can be optimised by a profile.
# As root, it also tests that the programs run in an otherwise empty root directory, and start a mesh.
set -euo pipefail
cd "$(dirname "$0")/.."

dist=$(cd "${CARGO_TARGET_DIR:-target}/dist" 2>/dev/null && pwd) || { echo "there is no release yet: run scripts/dist.sh" >&2; exit 1; }
work=$(mktemp -d)
mesh=dist-$$
prefix=$work/prefix
finish() {
  [ ! -x "$prefix/bin/leno" ] || "$prefix/bin/leno" down --name "$mesh" --now >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
programs=(leno leno-proxy leno-broker leno-controller leno-bench)
passed=0 skipped=0
pass() { echo "--- PASS: $1"; passed=$((passed + 1)); }
fail() { echo "--- FAIL: $1" >&2; exit 1; }

(cd "$dist" && sha256sum --check --strict --quiet SHA256SUMS) || fail "SHA256SUMS holds"
for file in "$dist"/*; do
  file=$(basename "$file")
  [ "$file" = SHA256SUMS ] || grep -q "  $file\$" "$dist/SHA256SUMS" || fail "SHA256SUMS has $file"
done
pass "SHA256SUMS has every file"

"$dist/install.sh" --prefix "$prefix" --sha256 "$(sha256sum "$dist/SHA256SUMS" | cut -d' ' -f1)"
version=$("$prefix/bin/leno" version)
version=${version#leno }
for program in "${programs[@]}"; do
  case $program in
    # These programs do not terminate TLS of a mesh, so they have no FIPS module.
    leno-broker | leno-bench) expected=${version%+fips} ;;
    *) expected=$version ;;
  esac
  [[ $("$prefix/bin/$program" --version) == *" $expected" ]] || fail "$program is of version $expected"
done
"$prefix/bin/leno" analyze examples/shop/shop.yaml >/dev/null || fail "leno analyze accepts the shop"
pass "install.sh installs programs that run"

gzip --decompress --stdout "$prefix/share/man/man1/leno-up.1.gz" | grep -q '^\.SH OPTIONS' || fail "leno-up(1) has options"
bash -n "$prefix/share/bash-completion/completions/leno" || fail "the completions of bash are bash"
grep -q '^#compdef leno' "$prefix/share/zsh/site-functions/_leno" || fail "the completions of zsh are zsh's"
grep -q -e '--command leno ' "$prefix/share/fish/vendor_completions.d/leno.fish" || fail "the completions of fish are fish's"
pass "manual pages and completions are there"

# Only optimised programs have this section. A release must have no other programs.
for program in "${programs[@]}"; do
  python3 - "$prefix/share/doc/leno/$program.cdx.json" "$prefix/bin/$program" "$version" <<'END' || fail "$program says what it is made of"
import json, subprocess, sys, tempfile, zlib
bill = json.load(open(sys.argv[1]))
crates = {one["name"] for one in bill["components"] if one["purl"].startswith("pkg:cargo/")}
program = sys.argv[2].rsplit("/", 1)[1]
has_module = sys.argv[3].endswith("+fips") and program not in ("leno-broker", "leno-bench")
module = "aws-lc-fips-sys" if has_module else "aws-lc-sys"
# A broker depends neither on TLS nor on an asynchronous runtime.
expected = {"leno-handover"} if program == "leno-broker" else {"rustls", "tokio", module}
assert bill["bomFormat"] == "CycloneDX" and expected <= crates, crates
assert program != "leno-broker" or not crates & {"rustls", "tokio", module}, crates
assert has_module or "aws-lc-fips-sys" not in crates, crates
references = {one["bom-ref"] for one in [bill["metadata"]["component"], *bill["components"]]}
assert all(edge["ref"] in references and set(edge["dependsOn"]) <= references for edge in bill["dependencies"])
if b"\0.dep-v0\0" in open(sys.argv[2], "rb").read():
    with tempfile.NamedTemporaryFile() as section:
        subprocess.run(["objcopy", "--dump-section", f".dep-v0={section.name}", sys.argv[2], "/dev/null"], check=True)
        listed = json.loads(zlib.decompress(section.read()))["packages"]
    own = bill["metadata"]["component"]["name"]
    assert {one["name"] for one in listed} == crates | {own}, "the program lists other packages"
END
  licences=$(gzip --decompress --stdout "$prefix/share/doc/leno/THIRD-PARTY-LICENSES.gz")
  [[ $licences == *"aws-lc-sys "*"rustls "*"Permission is hereby granted"* ]] || fail "the licences of others are there"
done
pass "bills of materials and licences of dependencies are there"

"$dist/install.sh" --prefix "$prefix" >/dev/null || fail "installing again works"
"$prefix/bin/leno" version >/dev/null
"$dist/install.sh" --prefix "$prefix" --uninstall >/dev/null
[ -z "$(find "$prefix" -type f)" ] || fail "--uninstall leaves $(find "$prefix" -type f)"
pass "install.sh installs again, and removes everything"

cp -r "$dist" "$work/changed"
archive=$(basename "$(ls "$work"/changed/leno-*-linux-"$(dpkg --print-architecture 2>/dev/null || echo amd64)".tar.gz)")
printf x >>"$work/changed/$archive"
if said=$("$dist/install.sh" --from "$work/changed" --prefix "$prefix" 2>&1); then fail "a changed archive is refused"; fi
[[ $said == *"damaged or was changed"* ]] || fail "the refusal says why: $said"
[ -z "$(find "$prefix" -type f)" ] || fail "a changed archive installs nothing"
if "$dist/install.sh" --sha256 "$(printf %064d 0)" --prefix "$prefix" 2>/dev/null; then fail "a wrong --sha256 is refused"; fi
if "$dist/install.sh" --from http://127.0.0.1:1 --prefix "$prefix" 2>/dev/null; then fail "plain http is refused"; fi
pass "install.sh refuses what was changed"

if command -v dpkg-deb >/dev/null; then
  deb=$(ls "$dist/leno_"*"_$(dpkg --print-architecture).deb")
  [ "$(dpkg-deb --field "$deb" Version)" = "$version" ] || fail "the package has version $version"
  dpkg-deb --extract "$deb" "$work/root"
  tar --extract --gzip --file "$dist/$archive" --directory "$work"
  for program in "${programs[@]}"; do
    cmp "$work/root/usr/bin/$program" "$work/${archive%.tar.gz}/bin/$program" || fail "the package has the archive's $program"
  done
  pass "the .deb has the archive's programs"
fi

# Only a program that loads a library has an interpreter.
loads_none() {
  local headers
  headers=$(readelf --program-headers "$1") && [[ $headers != *INTERP* ]]
}
if [ "$(id -u)" != 0 ]; then
  echo "--- SKIP: a mesh of the installed programs: needs root"
  skipped=$((skipped + 1))
else
  "$dist/install.sh" --prefix "$prefix" >/dev/null
  if loads_none "$prefix/bin/leno"; then
    chroot "$prefix" /bin/leno version >/dev/null || fail "leno runs where nothing else is"
    pass "leno runs in a root without any library"
  fi
  "$prefix/bin/leno" up --wait --name "$mesh" - <<'END'
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: sleeper}
spec: {command: [sleep, infinity]}
END
  "$prefix/bin/leno" ps --name "$mesh" | grep -q sleeper-0 || fail "the mesh has its workload"
  "$prefix/bin/leno" down --name "$mesh"
  pass "the installed programs run a mesh"
fi
scripts/profile-test.sh || fail "a program is optimised by a profile"
pass "a program is optimised by a profile"
printf '\n%d passed, 0 failed, %d skipped\n' "$passed" "$skipped"
