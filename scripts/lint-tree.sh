#!/usr/bin/env bash
# Checks the rules about the source that no compiler checks, such as file sizes and that dependencies point down.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
fail() { echo "lint: $*" >&2; bad=1; }

# A file must not have more than 800 lines.
while read -r lines file; do
  [ "$file" = total ] && continue
  [ "$lines" -le 800 ] || fail "$file has $lines lines: split it (800 at most)"
done < <(git ls-files -z ':!*/generated/*' '*.rs' '*.c' '*.h' '*.sh' '*.go' | xargs -0 wc -l)

# A crate may depend on crates of a lower rank, and within one rank only as listed below.
declare -A rank=(
  [leno-types]=0 [leno-checks]=0 [leno-tap]=0 [leno-requests]=0 [leno-program]=0 [leno-bpf-abi]=0 [leno-measure]=0 [leno-cni]=0 [leno-handover]=0 [leno-sockets]=0 [leno-confine]=0 [leno-reclaim]=0 [leno-crypto]=0
  [leno-charts]=0 [leno-launch]=0 [leno-dashboard]=3 [leno-kube]=0 [leno-observe]=1 [leno-wire]=1 [leno-policy]=1 [leno-resources]=1 [leno-hpack]=1
  [leno-transport]=2 [leno-tls]=2 [leno-h2]=2 [leno-http]=2 [leno-pool]=2 [leno-balance]=2 [leno-discovery]=2 [leno-spiffe]=2 [leno-names]=2
  [leno-telemetry]=2 [leno-tokens]=2 [leno-resilience]=2 [leno-bpf]=2 [leno-supervise]=2 [leno-index]=2 [leno-identity]=2 [leno-sources]=2
  [leno-inbound]=3 [leno-outbound]=3 [leno-datagram]=3 [leno-capture]=3 [leno-flows]=3 [leno-serve]=3 [leno-analysis]=3 [leno-status]=3 [leno-keys]=3
  [leno-local]=4 [leno-cluster]=4 [leno-cluster-observer]=4 [leno-admission]=4 [leno-operate]=4
  [leno-console]=5 [leno-suite]=5 [leno-agent]=5 [leno-proxy]=5 [leno-broker]=5 [leno-controller]=5 [leno-bench]=6 [leno-example-shop]=5
  [leno]=6
  [leno-testkit]=1 [leno-testkit-api]=1 [leno-fuzz]=5
)
same_rank_ok=" leno-resources:leno-policy leno-h2:leno-transport leno-http:leno-h2 leno-pool:leno-http leno-pool:leno-h2 leno-pool:leno-transport leno-http:leno-transport leno-tls:leno-transport leno-resilience:leno-balance leno-sources:leno-index leno-bpf:leno-bpf-abi leno-discovery:leno-spiffe "
for manifest in $(git ls-files '*/Cargo.toml'); do
  name=$(awk -F'"' '/^name = / {print $2; exit}' "$manifest")
  [ -n "${rank[$name]:-}" ] || { fail "$manifest: give $name a rank in scripts/lint-tree.sh"; continue; }
  for dependency in $(awk '/^\[/ {on = ($0 == "[dependencies]")} on && /^leno-/ {sub(/[. =].*/, ""); print}' "$manifest"); do
    [ "${rank[$dependency]:-9}" -lt "${rank[$name]}" ] && continue
    [[ $same_rank_ok == *" $name:$dependency "* ]] && continue
    fail "$name must not depend on $dependency: dependencies point down (ARCHITECTURE.md)"
  done
done

# A crate must name each dependency of its manifest in its code (a name in a comment also counts).
mapfile -t manifests < <(git ls-files '*/Cargo.toml')
for manifest in "${manifests[@]}"; do
  folder=${manifest%/Cargo.toml} files=("$folder/*.rs")
  for nested in "${manifests[@]}"; do
    [[ $nested != "$folder"/*/Cargo.toml ]] || files+=(":!${nested%Cargo.toml}*")
  done
  # Tests may include a file of another crate.
  while IFS=: read -r file shared; do
    shared=$(realpath -m --relative-to=. "${file%/*}/$shared") files+=("${shared%/*}/*.rs")
  done < <(git grep -oP '#\[path = "\K\.\./[^"]+' -- "${files[@]}")
  named=$(awk '/^\[/ {on = /dependencies\]$/} on && /^[a-z]/ {sub(/[. =].*/, ""); gsub("-", "_"); print}' "$manifest" | sort -u)
  used=$(git grep -howE "${named//$'\n'/|}" -- "${files[@]}" | sort -u || true)
  unused=$(comm -23 <(echo "$named") <(echo "$used"))
  [ -z "$unused" ] || fail "$manifest: not used: ${unused//$'\n'/ }"
done

# In the crates of bench, imports must not be circular: a file must not import a file that imports it, not even
# through others. A file also counts as one that imports its submodules. Tests do not count.
imports() { # folder of the sources, its files: a line "FILE IMPORTED" for each import
  awk -v root="$1/" '
    function under(module, name) { return module == "" ? name : module "::" name }
    function import(path,   parts, count, nth, module, next_one) {
      count = split(path, parts, "::"); nth = 1; module = here
      if (parts[1] == "crate") { module = ""; nth = 2 }
      else if (parts[1] == "super") for (; parts[nth] == "super"; nth++) { if (!sub(/::[^:]*$/, "", module)) module = "" }
      else if (!(under(here, parts[1]) in file)) return
      for (; nth <= count; nth++) { next_one = under(module, parts[nth]); if (!(next_one in file)) break; module = next_one }
      if (module != here) print file[here], file[module]
    }
    function expand(before, list,   nth, depth, one, c) {
      for (nth = 1; nth <= length(list) + 1; nth++) {
        c = substr(list, nth, 1); depth += (c == "{") - (c == "}")
        if (nth > length(list) || (c == "," && !depth)) { tree(before, one); one = "" } else one = one c
      }
    }
    function tree(before, one,   at) {
      gsub(/^[ \t]+|[ \t]+$/, "", one); at = index(one, "{")
      if (at) expand(before substr(one, 1, at - 1), substr(one, at + 1, length(one) - at - 1))
      else if (one != "") import(before one)
    }
    function module_of(name) { sub("^" root, "", name); sub(/\.rs$/, "", name); gsub("/", "::", name); return name ~ /^(lib|main)$/ ? "" : name }
    BEGIN { for (nth = 1; nth < ARGC; nth++) file[module_of(ARGV[nth])] = ARGV[nth] }
    FNR == 1 { here = module_of(FILENAME); tests = 0; statement = "" }
    tests == 1 && / mod |^mod / { tests = /\{/ ? 2 : 0; next }
    /^#\[cfg\(test\)\]/ { tests = 1 }
    tests == 2 { next }
    { sub(/\/\/.*/, ""); gsub(/pub(\([^)]*\))? /, "") }
    /^ *mod [a-z0-9_]+;/ { sub(/^ *mod /, ""); sub(/;.*/, ""); import($0); next }
    statement != "" || /^ *use / {
      statement = statement $0
      if (statement ~ /;/) { sub(/^ *use /, "", statement); sub(/;.*/, "", statement); tree("", statement); statement = "" }
      next
    }
    { while (match($0, /(crate|super)(::[A-Za-z0-9_]+)+/)) { import(substr($0, RSTART, RLENGTH)); $0 = substr($0, RSTART + RLENGTH) } }
  ' "${@:2}"
}
for sources in bench/src bench/suite/src bench/measure/src; do
  mapfile -t files < <(git ls-files "$sources/*.rs" | grep -v '/tests\.rs$')
  circle=$(imports "$sources" "${files[@]}" | tsort 2>&1 >/dev/null) || fail "files that import each other in a circle:"$'\n'"$circle"
done

# A program must not panic when its output has no reader, as the macros of the standard library do.
# program/src/output.rs has macros that do not.
mapfile -t files < <(git ls-files '*/src/*.rs' ':!testkit' ':!*tests*')
panicking=$(awk 'FNR == 1 { tests = 0 } /^ *#\[cfg\(test\)\]/ { tests = 1 } !tests && /(^|[^a-z_])e?print(ln)?!/ && !/^ *\/\// { print FILENAME ":" FNR }' "${files[@]}")
[ -z "$panicking" ] || fail "use note!, print_line! or print_text! of leno-program:"$'\n'"$panicking"

# A comment must not contain an example that rustdoc would compile, because `make test` does not run rustdoc
# (decision 210).
examples=$(git ls-files -z '*.rs' | xargs -0 awk '
  FNR == 1 { fenced = 0; before = "" }
  !fenced && /^[ \t]*\/\/[\/!]     / && before ~ /^[ \t]*\/\/[\/!][ \t]*$/ { print FILENAME ":" FNR }
  { before = $0 }
  match($0, /^[ \t]*\/\/[\/!][ \t]*(```|~~~)/) {
    if (!fenced && substr($0, RSTART + RLENGTH) !~ /^text/) print FILENAME ":" FNR
    fenced = !fenced
  }
  /^[ \t]*\/\*[*!]/ { print FILENAME ":" FNR }')
[ -z "$examples" ] || fail "a comment with an example that no test runs (a block of text begins with \`\`\`text): ${examples//$'\n'/ }"

# Each concern's library may be used only in its own crates.
only_in() { # what, pattern, folders...
  local what=$1 pattern=$2; shift 2
  local rows; rows=$(git grep -lE "$pattern" -- '*/Cargo.toml' | grep -vE "^($(IFS='|'; echo "$*"))/" || true)
  [ -z "$rows" ] || fail "$what belongs to $*: $rows"
}
only_in protobuf '^(prost|tonic-prost)[. ]' api/wire dashboard/api
only_in 'the kernel loader' '^libbpf' bpf/loader
# Other crates get its types through leno-kube, so that only one crate connects, watches and retries.
only_in 'the client of Kubernetes' '^(kube|kube-[a-z]+|kubert)[. ]' control/kube

exit "$bad"
