# Builds the images of Leno with Docker (23 or newer, or with BuildKit) or Podman:
#   docker build --target leno-proxy -t leno-proxy .
#   docker buildx build --platform linux/amd64,linux/arm64 --target leno-proxy -t R/leno-proxy:T --push .
# With --build-arg FIPS=1, leno-proxy and leno-controller contain aws-lc's FIPS module; give such images tags that end in -fips.
# With --build-arg PROFILE=FILE, where FILE is in this folder, leno-proxy is optimised by that profile (scripts/profile.sh).
# `make images` builds the same images without a container engine.

# This stage runs on the machine's own architecture, and cross-compiles for others. Only the last stages install packages
# in an emulator of the target's architecture.
FROM --platform=$BUILDPLATFORM rust:1-bookworm AS build
ARG TARGETARCH
ARG FIPS=0
ARG PROFILE=
RUN apt-get update && apt-get install -y --no-install-recommends \
      clang llvm cmake mold pkg-config libbpf-dev libelf-dev zlib1g-dev $([ "$FIPS" != 1 ] || echo golang perl)
WORKDIR /leno
COPY . .
RUN programs=$(FIPS=$FIPS PROFILE=$PROFILE scripts/programs.sh "linux/$TARGETARCH") \
 && mkdir /out && cd "$programs" && cp leno-proxy leno-broker leno-controller leno-cni leno-agent leno-bench /out/

FROM scratch AS leno-proxy
COPY --from=build /out/leno-proxy /leno-proxy
USER 2102:2102
ENTRYPOINT ["/leno-proxy"]

FROM scratch AS leno-controller
COPY --from=build /out/leno-controller /leno-controller
USER 65532:65532
ENTRYPOINT ["/leno-controller"]

# The agent runs nft or iptables on nodes on which the kernel programs cannot capture.
FROM debian:bookworm-slim AS leno-agent
RUN apt-get update && apt-get install -y --no-install-recommends nftables iptables libelf1 zlib1g \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/leno-agent /leno-agent
COPY --from=build /out/leno-cni /leno-cni
# The brokers of pods in node mode, and the proxies that serve those pods.
COPY --from=build /out/leno-broker /leno-broker
COPY --from=build /out/leno-proxy /leno-proxy
ENTRYPOINT ["/leno-agent"]

# The load generator and the services of `leno bench run --context`.
FROM debian:bookworm-slim AS leno-bench
RUN apt-get update && apt-get install -y --no-install-recommends libelf1 zlib1g && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/leno-bench /leno-bench
USER 65532:65532
ENTRYPOINT ["/leno-bench"]
