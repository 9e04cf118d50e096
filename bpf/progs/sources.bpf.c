// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Drops the frames that a workload sends from an address that is not its own. Attached to the outer end of the
 * workload's interface.
 *
 * Loaded once for each interface: the addresses are read-only data, so no map is looked up. Link-local and unspecified
 * sources of IPv6 pass, because neighbour discovery uses them; routers do not forward packets from them.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "../lib/packet.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The workload's addresses. `ipv6` is unspecified if the workload has none. */
SEC(".rodata.config") const volatile struct {
	__be32 ipv6[4];
	__be32 ipv4;
} own;

/* The offset of the sender's IPv4 address in ARP: after eight bytes and the sender's hardware address (RFC 826). */
#define ARP_SENDER (ETH_HLEN + 8 + ETH_ALEN)
#define IPV4_SENDER (ETH_HLEN + offsetof(struct ipv4_start, from))
#define IPV6_SENDER (ETH_HLEN + offsetof(struct ipv6_start, from))

static __always_inline bool is_own_ipv4(struct __sk_buff *skb, __u32 at)
{
	__be32 from;

	return !bpf_skb_load_bytes(skb, at, &from, sizeof(from)) && from == own.ipv4;
}

static __always_inline bool is_own_ipv6(struct __sk_buff *skb)
{
	__be32 from[4];

	if (bpf_skb_load_bytes(skb, IPV6_SENDER, from, sizeof(from)))
		return false;
	if (from[0] == own.ipv6[0] && from[1] == own.ipv6[1] && from[2] == own.ipv6[2] &&
	    from[3] == own.ipv6[3])
		return true;
	return (from[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       !(from[0] | from[1] | from[2] | from[3]);
}

SEC("tc")
int leno_source(struct __sk_buff *skb)
{
	bool is_own = true;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		is_own = is_own_ipv4(skb, IPV4_SENDER);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		is_own = is_own_ipv6(skb);
	else if (skb->protocol == bpf_htons(ETH_P_ARP))
		is_own = is_own_ipv4(skb, ARP_SENDER);
	return is_own ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}
