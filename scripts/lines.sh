#!/usr/bin/env bash
# Prints the number of lines of Rust of each crate: all lines, and those of its tests (`mod tests`, files named
# tests, the folder tests).
#
#   scripts/lines.sh            every crate
#   scripts/lines.sh bench      the crates below a folder, and their sum
set -euo pipefail
cd "$(dirname "$0")/.."
below=${1:-.}

git ls-files -- "$below" | awk '
  /(^|\/)Cargo\.toml$/ { sub(/\/?Cargo\.toml$/, ""); crate[$0] = 1; next }
  /\.rs$/ { files[++count] = $0 }
  END {
    for (nth = 1; nth <= count; nth++) {
      of = files[nth]
      while (of != "" && !(of in crate)) if (!sub(/\/[^\/]*$/, "", of)) of = ""
      is_test = files[nth] ~ /(^|\/)tests(\.rs$|\/)/
      while ((getline line < files[nth]) > 0) {
        all[of]++; sum++
        if (!is_test && after && line ~ /mod [a-z_]+ \{/) is_test = 1
        after = line ~ /^#\[cfg\(test\)\]/
        if (is_test) { tests[of]++; sum_of_tests++ }
      }
      close(files[nth])
    }
    for (of in all) printf "%7d  %6d tests  %s\n", all[of], tests[of], of == "" ? "." : of
    printf "%7d  %6d tests  together\n", sum, sum_of_tests
  }' | sort -k4
