// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How datagrams of the workload reach its proxy, and how the application sees the answers.
 *
 * A destination is replaced by a placeholder: an address of loopback with a number that the map `targets` translates
 * back.
 *
 *   connect, sendmsg   targets[number] = destination; the datagram is sent to the placeholder's address and the
 *                      proxy's port                                (cgroup/connect4,6, cgroup/sendmsg4,6)
 *   proxy              queries the destination of the placeholder  (cgroup/getsockopt)
 *   answer             is sent by the proxy from the placeholder
 *   recvmsg            shows the destination as the source         (cgroup/recvmsg4,6)
 *
 * A placeholder represents the same destination for all sockets, so answers to a socket with many destinations are not
 * mixed up. Its number is a hash of the destination, or one of the next numbers if another destination has that one.
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
/* Numbers that are tried for one destination. With 4096 of 4 million taken, one in a thousand needs a second try. */
#define PLACEHOLDER_TRIES 4

#define PLACEHOLDER_V4 0x7f400000
#define PLACEHOLDER_V6_0 bpf_htonl(0x01000000)
#define PLACEHOLDER_V6_1 bpf_htonl(0x00000001)
#define PLACEHOLDER_V6_2 bpf_htonl(0x00010000)

#define DNS_PORT 53
/* From here on the kernel chooses the ports of unbound sockets (default of net.ipv4.ip_local_port_range). */
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

/* Mixes a word into a hash (the finalizer of murmur3). It need not resist an attacker, who could only mix up
 * destinations of its own workload.
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

/* The destination that the application sees as the source of an answer from this address; 0 if the address is no
 * placeholder with the proxy's port, or if its destination was evicted.
 */
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

/* Whether datagrams to this address are never captured: to the workload itself, to the stand-in address, to groups, to
 * placeholders, and to DNS servers unless DNS is captured, too.
 */
static __always_inline bool is_own_datagram(const struct socket_address *to)
{
	return is_loopback(to) || is_stand_in(to) || is_multicast(to) ||
	       placeholder_number(to) != NO_PLACEHOLDER ||
	       (config.datagrams != DATAGRAMS_WITH_DNS && to->port == bpf_htons(DNS_PORT));
}

/* Whether no honest packet from the network has this source: loopback, the stand-in address, a placeholder, or the
 * receiver's own address. The kernel validates sources for IPv4 only; packets of IPv6 with a source that is routed to
 * lo, or with the receiver's own, would be delivered.
 */
static __always_inline bool is_forged_source(const struct socket_address *from,
					     const struct socket_address *to)
{
	return is_loopback(from) || is_stand_in(from) || placeholder_number(from) != NO_PLACEHOLDER ||
	       same_ip(from, to);
}

/* Whether to drop a datagram that arrives for an unconnected socket because it bypasses the mesh. Datagrams of the mesh
 * arrive as QUIC packets at DATAGRAM_PORT, and answers from outside of the mesh arrive at connected sockets of the
 * proxy.
 */
static __always_inline bool is_plain_datagram(const struct socket_address *remote,
					      __be16 remote_port,
					      const struct socket_address *local, __u32 local_port)
{
	if (is_loopback(remote) || is_loopback(local) || same_ip(remote, local) ||
	    is_stand_in(remote))
		return false;
	/* Between the application and its proxy. leno_datagram_ingress drops packets with such addresses from the
	 * network.
	 */
	if (placeholder_number(remote) != NO_PLACEHOLDER ||
	    placeholder_number(local) != NO_PLACEHOLDER)
		return false;
	if (local_port == DATAGRAM_PORT)
		return false;
	/* An answer of a DNS server to an unconnected socket with an ephemeral port passes, unless DNS is captured. */
	return config.datagrams == DATAGRAMS_WITH_DNS || remote_port != bpf_htons(DNS_PORT) ||
	       local_port < FIRST_EPHEMERAL;
}

#endif
