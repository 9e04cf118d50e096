# Every target works as the first command on a fresh machine: `deps` installs what is missing, or
# says what to type. `make` alone prints this list.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint build release bench-http bench-balance bench-mesh fuzz images images-test e2e conformance cluster-up cluster-down clean deps

help: ## print the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: release ## a small shop, meshed, under load, for 20 s (needs root)
	@scripts/as-root.sh $(TARGET)/release/leno demo

test: deps ## every test; the ones that need root or the kernel run when this is root
	@scripts/test.sh

lint: deps ## formatting, clippy, file sizes, dependency direction
	@scripts/lint.sh

build: deps ## all binaries, debug
	$(CARGO) build --workspace

release: deps ## the binaries that people run, optimised, in target/release
	$(CARGO) build --release --bins -p leno -p leno-proxy -p leno-controller \
		-p leno-testkit -p leno-example-shop -p leno-bench

bench-http: release ## one hop: CPU per request beside HAProxy, nginx and Envoy (20 minutes)
	@scripts/tools.sh envoy || echo "going on without it"
	$(TARGET)/release/leno-bench http --out $(TARGET)/bench-http.json

bench-balance: release ## p99 with a slow endpoint, and what matching costs: both have a verdict (5 minutes)
	$(TARGET)/release/leno-bench balance
	$(TARGET)/release/leno-bench match

bench-mesh: release ## two hops with mTLS beside pairs of Envoy and HAProxy (needs root; 25 minutes)
	@scripts/tools.sh envoy || echo "going on without it"
	@scripts/as-root.sh $(TARGET)/release/leno-bench mesh --out $(TARGET)/bench-mesh.json

fuzz: deps ## every parser under libFuzzer, FUZZ_SECONDS (60) for each
	@scripts/fuzz.sh

images: ## the images of an installation, without a container engine (needs Go; PLATFORMS=linux/amd64,linux/arm64)
	@scripts/deps.sh images
	@scripts/images.sh

images-test: ## what is in those images, and that their programs run, those of another architecture in qemu (needs root)
	@scripts/images-test.sh

e2e: ## the mesh on a real cluster of two nodes (needs root and Go; the first run builds Kubernetes)
	@scripts/cluster.sh test

conformance: ## the Gateway API's suite for meshes, as it is, on such a cluster; writes docs/conformance
	@scripts/conformance.sh

cluster-up: ## a real Kubernetes cluster in namespaces of this machine (needs root; NODES=1)
	@scripts/cluster.sh up --nodes $(or $(NODES),1)

cluster-down: ## end it, and leave nothing behind (needs root)
	@scripts/cluster.sh down

clean: ## remove everything that was built
	$(CARGO) clean

deps:
	@scripts/deps.sh
