#!/usr/bin/env bash
# Makes the site of the documentation in site/ of the target directory, from the Markdown files of the repository
# and the files to which they link. Fails for broken links, broken anchors, pages that are in no menu, and code
# blocks that cannot be right (docs/site_checks.py). docs/decisions/055-site.md explains the choice of the tool.
#
#   scripts/docs.sh             the site
#   scripts/docs.sh serve       the site on 127.0.0.1:8000
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/tools.sh site
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
tools=${LENO_TOOLS:-$target/tools}
draft=$(mktemp -d "$target/.site.XXXXXX")
trap 'rm -rf "$draft"' EXIT

# The folders are the same as in the repository, so that every relative link works.
linked() { # files that pages link to
  local page
  while read -r page; do
    { grep -oE '\]\([^)# ]+|(src|srcset|href)="[^"]+' "$page" || true; } | sed -E 's/^(\]\(|[a-z]+=")//' |
      { grep -vE '^[a-z]+:|\.md$' || true; } | sed "s|^|$(dirname "$page")/|"
  done
}
pages=$(git ls-files --cached --others --exclude-standard '*.md' ':!.github' ':!testkit')
{ echo "$pages"; linked <<<"$pages"; } | sort -u | while read -r file; do
  [ -f "$file" ] || continue # lint-links.sh, and mkdocs, name links to what is not there
  file=$(realpath --relative-to . "$file")
  mkdir -p "$draft/pages/$(dirname "$file")"
  cp "$file" "$draft/pages/$file"
done

cp docs/site_checks.py "$draft"
{
  cat docs/mkdocs.yml
  echo "  - Decisions:"
  for page in docs/decisions/README.md docs/decisions/[0-9]*.md; do echo "      - $page"; done
} >"$draft/mkdocs.yml"

export LENO_SITE_SOURCE=$draft/pages PYTHONPATH=$tools/site PYTHONDONTWRITEBYTECODE=1 NO_MKDOCS_2_WARNING=1
if [ "${1-}" = serve ]; then
  python3 -m mkdocs serve --config-file "$draft/mkdocs.yml"
else
  python3 -m mkdocs build --strict --config-file "$draft/mkdocs.yml" --site-dir "$target/site"
  echo "$target/site/index.html"
fi
