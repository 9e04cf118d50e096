// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts the packets that the kernel drops, by the kernel's own reason and by the workload in whose network namespace
 * the packet is dropped.
 *
 * The arguments of the tracepoint kfree_skb: the packet, where in the kernel's code, the reason (since 5.17), the socket
 * that it was for (since 6.11). What they point to is read by bpf_probe_read_kernel alone, which fails where there is
 * nothing.
 */
#ifndef LENO_FLOW_DROPS_H
#define LENO_FLOW_DROPS_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "flow_abi.h"
#include "flow_maps.h"
#include "tcp.h"

struct net_device {
	struct possible_net nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
} __attribute__((preserve_access_index));

/* Where the cookie is in kernels whose struct net has no `net_cookie`. */
struct ns_common___with_id {
	__u64 ns_id;
} __attribute__((preserve_access_index));

struct net___with_id {
	struct ns_common___with_id ns;
} __attribute__((preserve_access_index));

/* The key of a network namespace in `workloads`. */
static __always_inline __u64 netns_key(struct net *net)
{
	if (flow_config.netns_by_inode)
		return BPF_CORE_READ(net, ns.inum);
	if (bpf_core_field_exists(net->net_cookie))
		return BPF_CORE_READ(net, net_cookie);
	return BPF_CORE_READ((struct net___with_id *)net, ns.ns_id);
}

static __always_inline struct net *net_of(void *sk)
{
	return BPF_CORE_READ((struct sock_common *)sk, skc_net.net);
}

/* The network namespace of a packet: that of the receiving socket, else of the socket that sent or holds it, else of
 * its interface. While a packet is in the queue of a UDP socket, the field of the interface contains other data; then
 * reading it fails.
 */
static __always_inline struct net *net_of_packet(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct net *net = 0;
	void *sk = 0;

	if (flow_config.drop_names_socket)
		sk = (void *)ctx[3];
	/* Since 6.13 the verifier demands this check, because arguments of a tracepoint may be null. Earlier verifiers
	 * assume that they are not, and may remove the check; then reading fails, and `net` stays 0.
	 */
	if (sk)
		net = net_of(sk);
	if (!net)
		net = net_of(BPF_CORE_READ(skb, sk));
	return net ? net : BPF_CORE_READ(skb, dev, nd_net.net);
}

static __always_inline void count_drop(__u64 *ctx)
{
	struct flow_drop key = {}, rest = {};
	struct flow_workload *workload;
	__u64 netns, *count, one = 1;
	__u32 zero = 0, *turn;

	turn = bpf_map_lookup_elem(&drop_turn, &zero);
	if (!turn || *turn != flow_config.turn || flow_setting(FLOW_LEVEL) == LEVEL_OFF)
		return;
	netns = netns_key(net_of_packet(ctx));
	workload = bpf_map_lookup_elem(&workloads, &netns);
	if (!workload || level_of(workload->id) == LEVEL_OFF)
		return;
	count_run(workload->id, PROGRAM_DROP);
	key.workload = workload->id;
	key.reason = ctx[2];
	count = bpf_map_lookup_elem(&drops, &key);
	/* Another CPU may have created the entry in the meantime. */
	if (!count && !bpf_map_update_elem(&drops, &key, &one, BPF_NOEXIST))
		return;
	if (!count)
		count = bpf_map_lookup_elem(&drops, &key);
	if (!count)
		count = bpf_map_lookup_elem(&drops, &rest);
	if (count)
		add(count, 1);
}

#endif
