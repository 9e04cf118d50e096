// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Socket addresses, in one form for both families. */
#ifndef LENO_ADDRESS_H
#define LENO_ADDRESS_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

#define IPV4_LOOPBACK bpf_htonl(0x7f000001)
#define MAPPED_PREFIX bpf_htonl(0x0000ffff)

static __always_inline struct socket_address ipv4_address(__be32 ip, __be16 port)
{
	return (struct socket_address){
		.ip = { 0, 0, MAPPED_PREFIX, ip },
		.port = port,
		.family = LENO_AF_INET,
	};
}

static __always_inline struct socket_address ipv6_address(__be32 a, __be32 b, __be32 c, __be32 d,
							   __be16 port)
{
	bool mapped = a == 0 && b == 0 && c == MAPPED_PREFIX;

	return (struct socket_address){
		.ip = { a, b, c, d },
		.port = port,
		.family = mapped ? LENO_AF_INET : LENO_AF_INET6,
	};
}

static __always_inline bool same_words(const __be32 *a, const __be32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

static __always_inline bool same_ip(const struct socket_address *a, const struct socket_address *b)
{
	return same_words(a->ip, b->ip);
}

/* Loopback, or the unspecified address, which connect() treats as loopback. */
static __always_inline bool is_loopback(const struct socket_address *a)
{
	if (a->family == LENO_AF_INET)
		return (a->ip[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000) || a->ip[3] == 0;
	return a->ip[0] == 0 && a->ip[1] == 0 && a->ip[2] == 0 &&
	       (a->ip[3] == 0 || a->ip[3] == bpf_htonl(1));
}

/* The source of the proxy's connections to the application, 192.0.0.8 (RFC 7600) or 100:0:0:1::8
 * (RFC 9780): addresses that no host has. leno_types::source has the same values.
 */
static __always_inline bool is_stand_in(const struct socket_address *a)
{
	if (a->family == LENO_AF_INET)
		return a->ip[3] == bpf_htonl(0xc0000008);
	return a->ip[0] == bpf_htonl(0x01000000) && a->ip[1] == bpf_htonl(1) && a->ip[2] == 0 &&
	       a->ip[3] == bpf_htonl(8);
}

/* fe80::/10. Such an address identifies a neighbour only together with an interface. The original
 * destination has no field for an interface, so these connections cannot be steered; they are
 * refused instead.
 */
static __always_inline bool is_link_local_ipv6(const struct socket_address *a)
{
	return a->family == LENO_AF_INET6 &&
	       (a->ip[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

#endif
