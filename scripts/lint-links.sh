#!/usr/bin/env bash
# Refuses broken links. Every relative link of a *.md file must lead to a file or folder of the repository, its
# anchor must be a heading there, and every docs/*.md that any other file names must exist.
set -euo pipefail
cd "$(dirname "$0")/.."

files=$(git ls-files)
markdown=$(grep '\.md$' <<<"$files")

# Reads the names of all files, then each *.md file twice: for its headings, then for its links.
# shellcheck disable=SC2016,SC2086
awk '
  # GitHub makes the anchor of a heading in this way: lower case, spaces become hyphens, other punctuation is
  # dropped.
  function slug(text) {
    gsub(/\]\([^)]*\)/, "", text)
    text = tolower(text)
    gsub(/[^a-z0-9 _-]/, "", text)
    gsub(/ /, "-", text)
    return text
  }
  # The path to which a link in `file` leads, without "." and "..".
  function resolve(file, link,    parts, n, i, kept, path) {
    if (link !~ /^\//) { sub(/[^\/]*$/, "", file); link = file link }
    n = split(link, parts, "/"); kept = 0
    for (i = 1; i <= n; i++) {
      if (parts[i] == ".." && kept > 0) kept--
      else if (parts[i] != "" && parts[i] != ".") path[++kept] = parts[i]
    }
    link = path[1]
    for (i = 2; i <= kept; i++) link = link "/" path[i]
    return link
  }
  function check(link,    at, target, anchor) {
    if (link ~ /^[a-z]+:/) return
    anchor = ""; target = link
    if (at = index(link, "#")) { anchor = substr(link, at + 1); target = substr(link, 1, at - 1) }
    target = target == "" ? FILENAME : resolve(FILENAME, target)
    if (target != "" && !(target in exists)) fail(link, "there is no " target)
    else if (anchor != "" && target ~ /\.md$/ && !((target "#" anchor) in heading))
      fail(link, target " has no heading with this anchor")
  }
  function fail(link, why) { printf "lint: %s:%d: link %s: %s\n", FILENAME, FNR, link, why; bad = 1 }

  FILENAME == "-" { exists[$0]; while (sub(/\/[^\/]*$/, "")) exists[$0]; next }
  FNR == 1 { fenced = 0; pass[FILENAME]++ }
  /^ *(```|~~~)/ { fenced = !fenced; next }
  fenced { next }
  pass[FILENAME] == 1 {
    if (/^#+ /) {
      sub(/^#+ +/, ""); anchor = slug($0); times = seen[FILENAME, anchor]++
      heading[FILENAME "#" anchor (times ? "-" times : "")]
    }
    next
  }
  {
    gsub(/`[^`]*`/, "")
    while (match($0, /\]\([^) ]+|^\[[^]]+\]: *[^ ]+|(src|srcset|href)="[^"]+/)) {
      link = substr($0, RSTART, RLENGTH); $0 = substr($0, RSTART + RLENGTH)
      sub(/^(\]\(|\[[^]]+\]: *|[a-z]+=")/, "", link)
      check(link)
    }
  }
  END { exit bad }
' - $markdown $markdown <<<"$files" >&2 || bad=1

while IFS=: read -r file line path; do
  [ -e "$path" ] || { echo "lint: $file:$line: there is no $path" >&2; bad=1; }
done < <(git grep -noE '\bdocs/[A-Za-z0-9/_-]+\.md\b' -- ':!*.md')
exit "${bad:-0}"
