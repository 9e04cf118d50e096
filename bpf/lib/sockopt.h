// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Answers SO_ORIGINAL_DST (the address that the client dialled) for sockets of the proxy, as netfilter's connection
 * tracking would.
 */
#ifndef LENO_SOCKOPT_H
#define LENO_SOCKOPT_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "address.h"
#include "config.h"
#include "original.h"

#define SOL_IP 0
#define SOL_IPV6 41
#define SO_ORIGINAL_DST 80 /* the same number on both levels */

/* The kernel passes only this many bytes of a longer buffer to the program. It then fails the call, unless the program
 * sets optlen = 0 to leave the buffer unchanged.
 */
#define MAX_OPTLEN 4096

/* Outbound: the stored destination. Inbound: the socket's local address, which is the one that the client dialled,
 * since sk_lookup steers a connection without changing addresses. Fails for a socket whose local port is the proxy's
 * own.
 */
static __always_inline bool find_original(struct bpf_sock *sk, struct socket_address *original)
{
	struct socket_address *stored = original_of(sk);

	if (stored) {
		*original = *stored;
		return true;
	}
	if (sk->src_port == config.outbound_port || sk->src_port == config.inbound_port)
		return false;
	if (sk->family == LENO_AF_INET)
		*original = ipv4_address(sk->src_ip4, bpf_htons(sk->src_port));
	else
		*original = ipv6_address(sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2],
					 sk->src_ip6[3], bpf_htons(sk->src_port));
	return true;
}

/* Writes the address as SOL_IP or SOL_IPV6 have it. Returns its length, or 0 if the address is of the other family or
 * the buffer is too small.
 */
static __always_inline __s32 write_original(struct bpf_sockopt *ctx, struct socket_address *from)
{
	if (ctx->level == SOL_IP && from->family == LENO_AF_INET) {
		struct sockaddr_in *to = ctx->optval;

		if ((void *)(to + 1) > ctx->optval_end)
			return 0;
		*to = (struct sockaddr_in){ .sin_family = LENO_AF_INET, .sin_port = from->port };
		to->sin_addr.s_addr = from->ip[3];
		return sizeof(*to);
	}
	if (ctx->level == SOL_IPV6 && from->family == LENO_AF_INET6) {
		struct sockaddr_in6 *to = ctx->optval;

		if ((void *)(to + 1) > ctx->optval_end)
			return 0;
		*to = (struct sockaddr_in6){ .sin6_family = LENO_AF_INET6, .sin6_port = from->port };
		to->sin6_addr.in6_u.u6_addr32[0] = from->ip[0];
		to->sin6_addr.in6_u.u6_addr32[1] = from->ip[1];
		to->sin6_addr.in6_u.u6_addr32[2] = from->ip[2];
		to->sin6_addr.in6_u.u6_addr32[3] = from->ip[3];
		return sizeof(*to);
	}
	return 0;
}

#endif
