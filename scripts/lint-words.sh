#!/usr/bin/env bash
# Refuses words that hide who acts: "nobody", "whoever" and so on, where a client, a server, a pod or a task is
# meant, in text and in names (docs/glossary.md, "Plain words"). Files that still have such lines are listed in
# scripts/lint-words.allowed, each with their number, which may only decrease. Pages of docs/reference are not
# counted, because they are written from code, which is counted.
#
#   scripts/lint-words.sh             compares the tree with that file
#   scripts/lint-words.sh --lower     lowers the numbers in that file to those of the tree
set -euo pipefail
cd "$(dirname "$0")/.."

# An underscore counts as the end of a word, so that names of tests are counted as well.
words='(^|[^a-z])(whoever|whomever|nobody|somebody|everybody|whom|anew|of ours|of old|what of it|none where)([^a-z]|$)'
allowed=scripts/lint-words.allowed

# Prints a line "FILE COUNT" for each file that has any such line. Corpora for fuzzing are data and do not count.
found() {
  git grep -icE "$words" -- '*.rs' '*.md' '*.c' '*.h' '*.sh' '*.go' '*.toml' '*.yaml' '*.tpl' '*.proto' Makefile \
    ':!testkit/fuzz/corpus' ':!docs/reference' ':!scripts/lint-words.sh' ':!docs/glossary.md' | sed 's/:\([0-9]*\)$/ \1/' || true
}

if [ "${1-}" = --lower ]; then
  awk 'NR == FNR {limit[$1] = $2; next} $1 in limit {print $1, ($2 < limit[$1] ? $2 : limit[$1])}' \
    "$allowed" <(found) >"$allowed.new"
  mv "$allowed.new" "$allowed"
fi

bad=0
while read -r file count; do
  limit=$(awk -v file="$file" '$1 == file {print $2}' "$allowed")
  [ "$count" -le "${limit:-0}" ] && continue
  echo "lint: $file: $count lines with words that name no actor, ${limit:-0} allowed; docs/glossary.md has better ones:" >&2
  git grep -inE "$words" -- "$file" >&2
  bad=1
done < <(found)
exit "$bad"
