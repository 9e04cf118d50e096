# The images of Leno for those who have Docker: docker build --target leno-proxy -t leno-proxy .
# `make images` makes the same without it.
FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends clang llvm cmake mold libbpf-dev libelf-dev zlib1g-dev
WORKDIR /leno
COPY . .
RUN RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --target "$(rustc -vV | sed -n 's/^host: //p')" \
      --bins -p leno-proxy -p leno-controller -p leno-cni \
 && cargo build --release --bins -p leno-agent -p leno \
 && mkdir /out && cp target/*/release/leno-proxy target/*/release/leno-controller target/*/release/leno-cni \
      target/release/leno-agent target/release/leno /out/

FROM scratch AS leno-proxy
COPY --from=build /out/leno-proxy /leno-proxy
USER 2102:2102
ENTRYPOINT ["/leno-proxy"]

FROM scratch AS leno-controller
COPY --from=build /out/leno-controller /leno-controller
USER 65532:65532
ENTRYPOINT ["/leno-controller"]

# The agent runs nft and iptables, where the kernel programs cannot capture.
FROM debian:bookworm-slim AS leno-agent
RUN apt-get update && apt-get install -y --no-install-recommends nftables iptables libelf1 zlib1g \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/leno-agent /leno-agent
COPY --from=build /out/leno-cni /leno-cni
ENTRYPOINT ["/leno-agent"]

# The client and the services of `leno bench run --context`.
FROM debian:bookworm-slim AS leno
RUN apt-get update && apt-get install -y --no-install-recommends libelf1 zlib1g && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/leno /leno
USER 65532:65532
ENTRYPOINT ["/leno"]
