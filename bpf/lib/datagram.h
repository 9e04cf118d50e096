// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How datagrams of the workload reach its proxy, and how the application sees the answers.
 *
 *   connect, sendmsg   targets[placeholder] = destination; the datagram goes to the placeholder, which is an
 *                      address of loopback, and the proxy's port   (cgroup/connect4,6, cgroup/sendmsg4,6)
 *   proxy              asks what the placeholder stands for        (cgroup/getsockopt)
 *   answer             comes from the placeholder
 *   recvmsg            shows the destination                       (cgroup/recvmsg4,6)
 *
 * A placeholder stands for one destination, whichever socket has sent to it, so that a socket with many
 * destinations mixes nothing. Its number is a hash of the destination; a number that is taken is passed by.
 */
#ifndef LENO_DATAGRAM_H
#define LENO_DATAGRAM_H

#include <linux/bpf.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "address.h"
#include "config.h"
#include "counters.h"

#define PLACEHOLDER_MASK ((1u << PLACEHOLDER_BITS) - 1)
#define NO_PLACEHOLDER (~0u)
/* Numbers that are tried. With 4096 of 4 million taken, a second one is tried once in a thousand times. */
#define PLACEHOLDER_TRIES 4

#define PLACEHOLDER_V4 0x7f400000
#define PLACEHOLDER_V6_0 bpf_htonl(0x01000000)
#define PLACEHOLDER_V6_1 bpf_htonl(0x00000001)
#define PLACEHOLDER_V6_2 bpf_htonl(0x00010000)

#define DNS_PORT 53
/* From here on ports are the kernel's to choose (net.ipv4.ip_local_port_range). */
#define FIRST_EPHEMERAL 32768

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_DATAGRAM_TARGETS);
	__type(key, __u32);
	__type(value, struct socket_address);
} targets SEC(".maps");

static __always_inline bool same_address(const struct socket_address *a,
					 const struct socket_address *b)
{
	return same_ip(a, b) && a->port == b->port && a->family == b->family;
}

/* Spreads the bits (murmur3's finalizer); it need not resist an attacker, who could only mix up
 * destinations of its own.
 */
static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	hash ^= word;
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	hash ^= hash >> 16;
	return hash;
}

/* The number of the placeholder that stands for this destination, or NO_PLACEHOLDER. */
static __always_inline __u32 placeholder_of(const struct socket_address *to)
{
	__u32 hash = mix(mix(mix(mix(mix(0, to->ip[0]), to->ip[1]), to->ip[2]), to->ip[3]), to->port);

	for (int i = 0; i < PLACEHOLDER_TRIES; i++) {
		__u32 number = (hash + i) & PLACEHOLDER_MASK;
		struct socket_address *known = bpf_map_lookup_elem(&targets, &number);

		if (!known && !bpf_map_update_elem(&targets, &number, to, BPF_NOEXIST)) {
			count(DATAGRAM_TARGETS);
			return number;
		}
		if (!known) /* another CPU was faster */
			known = bpf_map_lookup_elem(&targets, &number);
		if (known && same_address(known, to))
			return number;
	}
	return NO_PLACEHOLDER;
}

/* The number of this placeholder, or NO_PLACEHOLDER for another address. */
static __always_inline __u32 placeholder_number(const struct socket_address *address)
{
	__u32 last = bpf_ntohl(address->ip[3]);

	if (address->family == LENO_AF_INET)
		return (last & ~PLACEHOLDER_MASK) == PLACEHOLDER_V4 ? last & PLACEHOLDER_MASK :
								       NO_PLACEHOLDER;
	if (address->ip[0] == PLACEHOLDER_V6_0 && address->ip[1] == PLACEHOLDER_V6_1 &&
	    address->ip[2] == PLACEHOLDER_V6_2)
		return last;
	return NO_PLACEHOLDER;
}

/* The destination that an answer of the proxy from this address is shown as coming from, or 0. */
static __always_inline struct socket_address *shown_for(const struct socket_address *from)
{
	__u32 number;
	struct socket_address *target;

	if (from->port != bpf_htons(config.outbound_port))
		return 0;
	number = placeholder_number(from);
	if (number == NO_PLACEHOLDER)
		return 0;
	target = bpf_map_lookup_elem(&targets, &number);
	if (!target)
		count(DATAGRAM_UNKNOWN);
	return target;
}

static __always_inline bool is_multicast(const struct socket_address *a)
{
	if (a->family == LENO_AF_INET)
		return (a->ip[3] & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) ||
		       a->ip[3] == bpf_htonl(0xffffffff);
	return (a->ip[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/* Whether datagrams to this address stay as they are wherever they come from: to the workload itself, to
 * clients that the proxy stands in for, to groups, and to name servers.
 */
static __always_inline bool is_own_datagram(const struct socket_address *to)
{
	return is_loopback(to) || is_stand_in(to) || is_multicast(to) ||
	       placeholder_number(to) != NO_PLACEHOLDER ||
	       (config.datagrams != DATAGRAMS_WITH_DNS && to->port == bpf_htons(DNS_PORT));
}

/* Whether this is an address that no packet of the network comes from: addresses of IPv6 that are routed to lo,
 * and the receiver's own, pass the kernel's check of sources, which IPv6 has none of.
 */
static __always_inline bool is_forged_source(const struct socket_address *from,
					     const struct socket_address *to)
{
	return is_loopback(from) || is_stand_in(from) || placeholder_number(from) != NO_PLACEHOLDER ||
	       same_ip(from, to);
}

/* Whether a datagram that arrives for a socket that is not connected is dropped. Datagrams of the mesh come
 * as packets of QUIC, and answers from outside of it to connected sockets of the proxy.
 */
static __always_inline bool is_plain_datagram(const struct socket_address *remote,
					      __be16 remote_port,
					      const struct socket_address *local, __u32 local_port)
{
	if (is_loopback(remote) || is_loopback(local) || same_ip(remote, local) ||
	    is_stand_in(remote))
		return false;
	/* between the application and its proxy; leno_datagram_ingress drops packets from elsewhere */
	if (placeholder_number(remote) != NO_PLACEHOLDER ||
	    placeholder_number(local) != NO_PLACEHOLDER)
		return false;
	if (local_port == DATAGRAM_PORT)
		return false;
	/* the answer of a name server to a socket that is not connected */
	return config.datagrams == DATAGRAMS_WITH_DNS || remote_port != bpf_htons(DNS_PORT) ||
	       local_port < FIRST_EPHEMERAL;
}

#endif
