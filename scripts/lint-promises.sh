#!/usr/bin/env bash
# Refuses a promise of docs/security.md without its test. Every folder, file and test that the page names must
# exist. A test must be in the file or folder that is named before it in its cell or paragraph, or else in the one
# that its section names ("Tests without a folder are in ...").
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/security.md
files=$(git ls-files)
tests=$(git grep -oE '\bfn [a-z][a-z0-9_]*|\bfunc Test[A-Za-z0-9_]*' -- '*.rs' '*.go')

# shellcheck disable=SC2016
awk '
  function fail(why) { printf "lint: %s:%d: %s\n", FILENAME, FNR, why; bad = 1 }
  FILENAME == "-" && /^=$/ { listed = 1; next }
  FILENAME == "-" && !listed { exists[$0]; while (sub(/\/[^\/]*$/, "")) { exists[$0]; if ($0 !~ /\//) roots[$0] } next }
  # A line `FILE:fn NAME` puts the test NAME into the file and into each folder above it.
  FILENAME == "-" {
    at = index($0, ":"); file = substr($0, 1, at - 1); name = substr($0, at + 1); sub(/^[a-z]+ /, "", name)
    do has[file, name]; while (sub(/\/[^\/]*$/, "", file))
    next
  }
  /^## / { section = "" }
  /^$/ || /^\| / { place = section }
  {
    line = $0; fallback = index(line, "Tests without a folder are in"); words = 3
    # In a table, the last cell of a row names the tests. In prose, names of two words may be names of other
    # things.
    if (/^\| /) { count = split(line, cells, "|"); line = cells[count - 1]; words = 2 }
    while (match(line, /`[^`]+`/)) {
      span = substr(line, RSTART + 1, RLENGTH - 2); line = substr(line, RSTART + RLENGTH)
      root = span; sub(/\/.*/, "", root)
      if (span ~ /^[A-Za-z0-9._\/-]+$/ && (root in roots)) {
        place = span; sub(/\/$/, "", place)
        if (!(place in exists)) fail("there is no " span)
      } else if (span ~ /^[a-z0-9_]+$/ && gsub(/_/, "_", span) + 1 >= words || span ~ /^Test[A-Z][A-Za-z0-9]*$/) {
        if (place == "") fail("where is the test " span "?")
        else if (!((place, span) in has)) fail("there is no test " span " in " place)
      }
    }
    # The sentence may end on the next line of the page.
    if (fallback || pending) { section = place; pending = place == "" }
  }
  END { exit bad }
' - "$page" < <(echo "$files"; echo =; echo "$tests") >&2
