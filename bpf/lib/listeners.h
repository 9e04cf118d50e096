// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The proxy's listening sockets, by family and direction. By these the programs tell whether the proxy listens. */
#ifndef LENO_LISTENERS_H
#define LENO_LISTENERS_H

#include <linux/bpf.h>
#include <linux/errno.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "config.h"
#include "counters.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, LISTENER_SLOTS * LISTENERS_PER_SLOT);
	/* Key: slot * LISTENERS_PER_SLOT + place. The enum is only used so that BTF has the names of the slots. */
	__type(key, enum listener_slot);
	__type(value, __u64);
} listeners SEC(".maps");

/* Returns any listening socket of the proxy in this slot, which the caller must release, or 0. It does not matter which
 * one: the kernel balances between the listeners that share a port. Listeners are not reference-counted
 * (SOCK_RCU_FREE), so the release writes no shared memory; the verifier requires the call.
 */
static __always_inline struct bpf_sock *listener_in(enum listener_slot slot)
{
	for (__u32 place = 0; place < LISTENERS_PER_SLOT; place++) {
		__u32 key = slot * LISTENERS_PER_SLOT + place;
		struct bpf_sock *sk = bpf_map_lookup_elem(&listeners, &key);

		if (!sk)
			continue;
		/* After shutdown() a socket refuses connections, but stays in the map until its last descriptor is
		 * closed.
		 */
		if (sk->state == BPF_TCP_LISTEN)
			return sk;
		bpf_sk_release(sk);
	}
	return 0;
}

/* Whether the proxy is listening, for this family and direction. */
static __always_inline bool is_listening(enum listener_slot slot)
{
	struct bpf_sock *sk = listener_in(slot);

	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* Registers a socket that starts listening, if it has a port of the proxy, in a free place of its slot. */
static __always_inline void register_listener(struct bpf_sock_ops *ops)
{
	bool ipv6 = ops->family == LENO_AF_INET6;
	enum listener_slot slot;
	long error = 0;

	if (ops->local_port == config.inbound_port)
		slot = ipv6 ? SLOT_INBOUND_IPV6 : SLOT_INBOUND_IPV4;
	else if (ops->local_port == config.outbound_port)
		slot = ipv6 ? SLOT_OUTBOUND_IPV6 : SLOT_OUTBOUND_IPV4;
	else
		return;
	for (__u32 place = 0; place < LISTENERS_PER_SLOT; place++) {
		__u32 key = slot * LISTENERS_PER_SLOT + place;

		error = bpf_sock_map_update(ops, &listeners, &key, BPF_NOEXIST);
		if (error != -EEXIST)
			break;
	}
	if (error)
		count(error == -EEXIST ? LISTENER_UNKEPT : LISTENER_FAILED);
	else
		count(LISTENER_REGISTERED);
}

#endif
