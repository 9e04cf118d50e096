// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The proxy's listening sockets, which double as the "proxy is listening" switch. */
#ifndef LENO_LISTENERS_H
#define LENO_LISTENERS_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "config.h"
#include "counters.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, LISTENER_SLOTS);
	__type(key, enum listener_slot);
	__type(value, __u64);
} listeners SEC(".maps");

/* Is the proxy listening there? Listeners are not reference-counted (SOCK_RCU_FREE), so this costs
 * no shared write; the release is what the verifier asks for.
 */
static __always_inline bool is_listening(enum listener_slot slot)
{
	struct bpf_sock *sk = bpf_map_lookup_elem(&listeners, &slot);

	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* Puts a socket of the proxy that begins to listen into its slot, in place of an older one. */
static __always_inline void register_listener(struct bpf_sock_ops *ops)
{
	bool ipv6 = ops->family == LENO_AF_INET6;
	enum listener_slot slot;

	if (ops->local_port == config.inbound_port)
		slot = ipv6 ? SLOT_INBOUND_IPV6 : SLOT_INBOUND_IPV4;
	else if (ops->local_port == config.outbound_port)
		slot = ipv6 ? SLOT_OUTBOUND_IPV6 : SLOT_OUTBOUND_IPV4;
	else
		return;
	if (bpf_sock_map_update(ops, &listeners, &slot, BPF_ANY))
		count(LISTENER_FAILED);
	else
		count(LISTENER_REGISTERED);
}

#endif
