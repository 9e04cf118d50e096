# Every target works as the first command on a new machine: scripts/deps.sh installs the programs that the target needs, or
# prints the command that installs them. `make` without a target prints a list of all targets.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help root-check demo demo-programs test lint build release profile bench-http bench-balance bench-mesh scale fuzz images images-test e2e conformance test-kernels dist docs reference proto nightly cluster-up cluster-down clean

# The programs of a mesh on one machine, and the shop and the load generator of the demo.
MESH := -p leno -p leno-proxy -p leno-broker -p leno-controller -p leno-example-shop -p leno-testkit \
	--bin leno --bin leno-proxy --bin leno-broker --bin leno-controller --bin shop --bin leno-load

help: ## print the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Checks before a build of minutes whether its result can be run.
root-check:
	@scripts/as-root.sh --check

demo: root-check demo-programs ## a small shop, meshed, under load, for 20 s (needs root)
	@scripts/as-root.sh $(TARGET)/demo/leno demo

demo-programs:
	@scripts/deps.sh demo
	$(CARGO) build --profile demo $(MESH)

test: ## every test; without root, those that need neither root nor the kernel's BPF
	@scripts/deps.sh test
	@scripts/test.sh

lint: ## formatting, clippy, file sizes, dependency direction, plain words, links
	@scripts/deps.sh lint
	@scripts/lint.sh

build: ## all binaries, debug
	@scripts/deps.sh build
	$(CARGO) build --workspace

# FIPS=1 builds with aws-lc's FIPS module, for --tls-profile fips. The module's sources come with the crate, not from this
# machine.
$(if $(filter-out 0 1,$(FIPS)),$(error FIPS=$(FIPS) is not supported: use 1 for the FIPS module, 0 or nothing for none))
FIPS_FEATURES := $(if $(filter 1,$(FIPS)),--features leno/fips --features leno-proxy/fips --features leno-controller/fips)
ifeq ($(FIPS),1)
export AWS_LC_FIPS_SYS_USE_SYSTEM := 0
endif

release: ## the programs for users and those of the benches, optimised, in target/release (FIPS=1: with the FIPS module)
	@scripts/deps.sh $(if $(filter 1,$(FIPS)),fips,build) release
	$(CARGO) build --release $(MESH) -p leno-bench --bin leno-peer --bin leno-bench $(FIPS_FEATURES)

# A profile belongs to one commit and one compiler (rust-toolchain.toml), so record it where the release is built.
profile: root-check release ## records how leno-proxy runs under load; make dist and make images optimise it with PROFILE=FILE (needs root; 20 minutes)
	@scripts/deps.sh bench profile
	@scripts/profile.sh make $(or $(PROFILE),$(TARGET)/leno-proxy.profile)

bench-http: release ## one hop: CPU per request beside HAProxy, nginx and Envoy (20 minutes)
	@scripts/deps.sh bench bench-http
	@scripts/tools.sh envoy || echo "continuing without Envoy"
	$(TARGET)/release/leno-bench http

bench-balance: release ## p99 latency with a slow endpoint, and the cost of matching, each compared with a limit (5 minutes)
	@scripts/deps.sh bench bench-balance
	@scripts/tools.sh envoy || echo "continuing without Envoy"
	$(TARGET)/release/leno-bench balance
	$(TARGET)/release/leno-bench match
	$(TARGET)/release/leno-bench authorize

bench-mesh: root-check release ## two hops with mTLS beside pairs of Envoy and HAProxy (needs root; 2 hours)
	@scripts/deps.sh bench bench-mesh
	@scripts/tools.sh envoy || echo "continuing without Envoy"
	@scripts/as-root.sh $(TARGET)/release/leno-bench mesh

scale: ## a real API server with 50,000 pods, 2,000 clients, changes, a rollout, an outage: memory, CPU, bytes, times (20 minutes; needs Go)
	@scripts/deps.sh build scale
	@scripts/scale.sh

fuzz: ## every parser and the whole proxy under libFuzzer, FUZZ_SECONDS (60) for each
	@scripts/deps.sh build fuzz
	@scripts/fuzz.sh

images: ## the images of an installation, without a container engine (needs Go; PLATFORMS=linux/amd64,linux/arm64; FIPS=1: tags end in -fips; PROFILE=FILE)
	@$(if $(filter 1,$(FIPS)),scripts/deps.sh fips images &&) scripts/deps.sh images
	@scripts/images.sh

images-test: ## tests the content of these images, and that their programs run (those for another architecture in qemu; needs root)
	@scripts/images-test.sh

e2e: ## the mesh on a real cluster of two nodes (needs root and Go; the first run builds Kubernetes)
	@scripts/cluster.sh test

conformance: ## the unmodified Gateway API suite for meshes, on such a cluster; writes docs/conformance
	@scripts/conformance.sh

test-kernels: ## Debian's kernels from 5.10 on in qemu: every kernel program, captures, flows; writes docs/kernels.md (needs root; 20 minutes)
	@scripts/kernels.sh

dist: ## static programs as archives and .deb, with manual pages, completions, checksums, install.sh (FIPS=1: +fips; PROFILE=FILE); and their test
	@scripts/deps.sh $(if $(filter 1,$(FIPS)),fips,build) dist
	@scripts/dist.sh
	@scripts/dist-test.sh

docs: ## the documentation as a site in target/site; checks its links and code blocks (needs Python)
	@scripts/docs.sh

reference: ## docs/reference, written from the code
	@scripts/deps.sh build reference
	LENO_UPDATE=1 $(CARGO) test -p leno-resources -p leno-http -p leno -p leno-proxy -p leno-controller -p leno-agent \
		-p leno-bench --lib --bins the_reference_has

proto: ## the generated code of api/wire and dashboard/api, written from their proto files
	@scripts/deps.sh build proto
	LENO_UPDATE=1 $(CARGO) test -p leno-wire -p leno-dashboard --test generated

nightly: ## the checks that take hours (scripts/nightly.sh lists them): clusters, conformance, fuzz, scale, images, dist; writes docs/status.md (needs root and Go)
	@scripts/nightly.sh

cluster-up: ## a real Kubernetes cluster in namespaces of this machine (needs root; NODES=1)
	@scripts/cluster.sh up --nodes $(or $(NODES),1)

cluster-down: ## end this cluster, and remove everything of it (needs root)
	@scripts/cluster.sh down

clean: ## remove everything that was built
	$(CARGO) clean
