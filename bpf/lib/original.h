// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How the original destination (the address that the application dialled) gets from the application's socket to the
 * proxy's.
 *
 *   connect        originals[application's socket]    (cgroup/connect4,6)
 *   before the SYN inflight[source address and port]  (sock_ops, application's side)
 *   handshake done originals[accepted socket]         (sock_ops, proxy's side)
 *
 * Each step happens before the proxy can accept the connection, so there is no race.
 */
#ifndef LENO_ORIGINAL_H
#define LENO_ORIGINAL_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "address.h"
#include "config.h"
#include "counters.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_address);
} originals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_INFLIGHT);
	__type(key, struct socket_address);
	__type(value, struct socket_address);
} inflight SEC(".maps");

static __always_inline bool remember_original(struct bpf_sock *sk, struct socket_address *to)
{
	struct socket_address *stored;

	stored = bpf_sk_storage_get(&originals, sk, to, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored) {
		count(ORIGINAL_FAILED);
		return false;
	}
	*stored = *to; /* the socket may have been connected before */
	return true;
}

static __always_inline struct socket_address *original_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&originals, sk, 0, 0);
}

static __always_inline struct socket_address local_address(struct bpf_sock_ops *ops)
{
	__be16 port = bpf_htons(ops->local_port);

	if (ops->family == LENO_AF_INET)
		return ipv4_address(ops->local_ip4, port);
	return ipv6_address(ops->local_ip6[0], ops->local_ip6[1], ops->local_ip6[2],
			    ops->local_ip6[3], port);
}

static __always_inline struct socket_address remote_address(struct bpf_sock_ops *ops)
{
	__be16 port = bpf_htons(bpf_ntohl(ops->remote_port));

	if (ops->family == LENO_AF_INET)
		return ipv4_address(ops->remote_ip4, port);
	return ipv6_address(ops->remote_ip6[0], ops->remote_ip6[1], ops->remote_ip6[2],
			    ops->remote_ip6[3], port);
}

/* Application's side, before the SYN leaves. */
static __always_inline void announce_original(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct socket_address *original;
	struct socket_address client;

	if (!sk || bpf_ntohl(ops->remote_port) != config.outbound_port)
		return;
	original = original_of(sk);
	if (!original)
		return;
	client = local_address(ops);
	if (bpf_map_update_elem(&inflight, &client, original, BPF_ANY))
		count(ORIGINAL_FAILED);
	else
		count(ORIGINAL_ANNOUNCED);
}

/* Proxy's side, before accept() returns the socket. */
static __always_inline void accept_original(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct socket_address *found;
	struct socket_address client, original;

	if (!sk || ops->local_port != config.outbound_port)
		return;
	client = remote_address(ops);
	found = bpf_map_lookup_elem(&inflight, &client);
	if (!found) {
		count(ORIGINAL_MISSED);
		return;
	}
	original = *found;
	bpf_map_delete_elem(&inflight, &client);
	if (remember_original(sk, &original))
		count(ORIGINAL_ACCEPTED);
}

#endif
