# Scripts that need Go source this file (`. scripts/go.sh`, from the folder of this repository). If there is any
# Go, it puts one into PATH that can build our modules. Go 1.21 and later fetch the version that a module asks for.
# For an older Go, such as Debian 12's, that version is fetched here in the same way: Go's toolchains are
# themselves modules, which Go's sum database verifies.
export PATH="/usr/local/go/bin:$PATH"

# Whether the `go` in PATH fetches the version that a module asks for.
new_go() { [[ $(go env GOVERSION 2>/dev/null) =~ ^go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 21 ]; }

# Prints the folder of the Go version for which our modules ask.
fetched_go() {
  local wanted folder
  wanted=$(awk '$1 == "go" {print $2}' e2e/cluster/go.mod)
  wanted=golang.org/toolchain@v0.0.1-go$wanted.$(go env GOOS)-$(go env GOARCH)
  folder=$(cd / && GOFLAGS='' go mod download -json "$wanted" | awk -F'"' '$2 == "Dir" {print $4}')
  # Files of modules are not executable.
  [ -n "$folder" ] && chmod +x "$folder"/bin/* "$folder"/pkg/tool/*/* && echo "$folder"
}

if command -v go >/dev/null && ! new_go; then
  if folder=$(fetched_go); then
    export PATH="$folder/bin:$PATH"
  else
    echo "$(go env GOVERSION) is older than 1.21, and a newer version cannot be fetched: steps that need Go are left out" >&2
  fi
fi
