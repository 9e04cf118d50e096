// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How the address of a client gets from the proxy's socket to the application's, so that the application sees it as its
 * peer.
 *
 *   setsockopt          clients[proxy's socket]        (cgroup/setsockopt)
 *   before the SYN      arriving[both addresses]       (sock_ops, proxy's side)
 *   handshake done      clients[application's socket]  (sock_ops, application's side)
 *   accept, getpeername read                           (cgroup/getpeername4,6)
 *
 * The application cannot accept the connection before the third step. If a step fails, the application sees the source
 * address to which the proxy has bound its socket: the stand-in address (see is_stand_in), never loopback.
 */
#ifndef LENO_CLIENT_H
#define LENO_CLIENT_H

#include <linux/bpf.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "address.h"
#include "config.h"
#include "counters.h"
#include "original.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_address);
} clients SEC(".maps");

/* Key of `arriving`. It has both ends, because one source port of the proxy may be in use towards several ports of the
 * application.
 */
struct connection_key {
	struct socket_address from;
	struct socket_address to;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_INFLIGHT);
	__type(key, struct connection_key);
	__type(value, struct socket_address);
} arriving SEC(".maps");

static __always_inline bool remember_client(struct bpf_sock *sk, struct socket_address *client)
{
	struct socket_address *stored;

	stored = bpf_sk_storage_get(&clients, sk, client, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored) {
		count(CLIENT_FAILED);
		return false;
	}
	*stored = *client; /* the proxy may set the client of a socket twice */
	return true;
}

static __always_inline struct socket_address *client_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&clients, sk, 0, 0);
}

/* Proxy's side, before the SYN leaves. */
static __always_inline void announce_client(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct socket_address *client;
	struct connection_key key;

	if (!sk)
		return;
	client = client_of(sk);
	if (!client)
		return;
	key.from = local_address(ops);
	key.to = remote_address(ops);
	if (bpf_map_update_elem(&arriving, &key, client, BPF_ANY))
		count(CLIENT_FAILED);
	else
		count(CLIENT_ANNOUNCED);
	/* getpeername on the proxy's own socket must return the application's address */
	bpf_sk_storage_delete(&clients, sk);
}

/* Application's side, before accept() returns the socket. */
static __always_inline void accept_client(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct socket_address *found;
	struct socket_address client;
	struct connection_key key;

	if (!sk || ops->local_port == config.outbound_port || ops->local_port == config.inbound_port)
		return;
	key.from = remote_address(ops);
	key.to = local_address(ops);
	found = bpf_map_lookup_elem(&arriving, &key);
	if (!found)
		return;
	client = *found;
	bpf_map_delete_elem(&arriving, &key);
	if (remember_client(sk, &client))
		count(CLIENT_SHOWN);
}

#endif
