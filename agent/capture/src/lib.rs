//! Steers a workload's traffic into its proxy: eBPF, nftables or iptables.
