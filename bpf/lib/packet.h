// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads the headers of a frame: Ethernet, IPv4 or IPv6 with extension headers (RFC 8200 section 4), then TCP, UDP or
 * none. If a header cannot be read, the packet has no ports, or no addresses if it is that of IP; it is still counted.
 */
#ifndef LENO_PACKET_H
#define LENO_PACKET_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "address.h"

/* The headers, each only up to the last field that is read. */
struct ipv4_start {
	__u8 version_and_words;
	__u8 service;
	__be16 length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__be32 from;
	__be32 to;
};

struct ipv6_start {
	__be32 version_class_label;
	__be16 length;
	__u8 next;
	__u8 hops;
	__be32 from[4];
	__be32 to[4];
};

struct tcp_start {
	__be16 from;
	__be16 to;
	__be32 sequence;
	__be32 acknowledged;
	__u8 words;
	__u8 flags;
};

struct ports_start {
	__be16 from;
	__be16 to;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define IPV4_FRAGMENT_OFFSET bpf_htons(0x1fff)

/* Most extension headers of IPv6 that are skipped. With more, the ports of a packet are not found. */
#define MAX_EXTENSIONS 6

struct packet {
	struct socket_address from;
	struct socket_address to;
	__u32 headers;  /* bytes of all headers, up to and with those of TCP or UDP; without these up to those of IP */
	__u32 payload;  /* bytes of payload of TCP or UDP, by the length in IP's header */
	__u32 sequence; /* TCP */
	__u8 protocol;  /* IPPROTO_*; 0 if the frame is not IP */
	__u8 flags;     /* TCP */
	__u8 reserved[2];
};

static __always_inline void read_tcp(struct __sk_buff *skb, struct packet *packet, __u32 at,
				     __u32 end)
{
	struct tcp_start tcp;
	__u32 length;

	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return;
	packet->from.port = tcp.from;
	packet->to.port = tcp.to;
	packet->sequence = bpf_ntohl(tcp.sequence);
	packet->flags = tcp.flags;
	length = (tcp.words >> 4) * 4;
	packet->headers = at + length;
	packet->payload = end > packet->headers ? end - packet->headers : 0;
}

/* Reads the header of TCP or UDP at `at`. `end` is where the packet ends according to IP's header. */
static __always_inline void read_transport(struct __sk_buff *skb, struct packet *packet, __u32 at,
					   __u32 end)
{
	struct ports_start ports;

	packet->headers = at;
	if (packet->protocol == IPPROTO_TCP) {
		read_tcp(skb, packet, at, end);
	} else if (packet->protocol == IPPROTO_UDP) {
		if (bpf_skb_load_bytes(skb, at, &ports, sizeof(ports)))
			return;
		packet->from.port = ports.from;
		packet->to.port = ports.to;
		packet->headers = at + 8;
		packet->payload = end > packet->headers ? end - packet->headers : 0;
	}
}

/* Where a packet ends: at the end of the frame if its length is 0, as in a packet that is too large for that field (BIG
 * TCP).
 */
static __always_inline __u32 datagram_end(struct __sk_buff *skb, __u32 begin, __be16 length)
{
	return length ? begin + bpf_ntohs(length) : skb->len;
}

static __always_inline void read_ipv4(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv4_start ip;
	__u32 length;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return;
	packet->from = ipv4_address(ip.from, 0);
	packet->to = ipv4_address(ip.to, 0);
	packet->protocol = ip.protocol;
	length = (ip.version_and_words & 15) * 4;
	packet->headers = ETH_HLEN + length;
	/* Only the first fragment has the ports. */
	if (length >= sizeof(ip) && !(ip.fragment & IPV4_FRAGMENT_OFFSET))
		read_transport(skb, packet, ETH_HLEN + length,
			       datagram_end(skb, ETH_HLEN, ip.length));
}

static __always_inline bool is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT ||
	       next == IPPROTO_DSTOPTS;
}

static __always_inline void read_ipv6(struct __sk_buff *skb, struct packet *packet)
{
	__u32 at = ETH_HLEN + sizeof(struct ipv6_start), end;
	struct ipv6_start ip;
	bool is_first = true;
	__u8 next;
	int i;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return;
	packet->from = ipv6_address(ip.from[0], ip.from[1], ip.from[2], ip.from[3], 0);
	packet->to = ipv6_address(ip.to[0], ip.to[1], ip.to[2], ip.to[3], 0);
	end = datagram_end(skb, at, ip.length);
	next = ip.next;
#pragma unroll
	for (i = 0; i < MAX_EXTENSIONS; i++) {
		struct {
			__u8 next;
			__u8 length;
			__be16 fragment;
		} extension;

		if (!is_extension(next))
			break;
		if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			break;
		if (next == IPPROTO_FRAGMENT) {
			is_first = !(extension.fragment & bpf_htons(0xfff8));
			at += 8;
		} else {
			at += (extension.length + 1) * 8;
		}
		next = extension.next;
	}
	packet->protocol = next;
	packet->headers = at;
	if (is_first)
		read_transport(skb, packet, at, end);
}

static __always_inline void read_packet(struct __sk_buff *skb, struct packet *packet)
{
	/* If the device has not removed a VLAN tag, `protocol` is the tag's, and the frame is not read further. */
	if (skb->protocol == bpf_htons(ETH_P_IP))
		read_ipv4(skb, packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		read_ipv6(skb, packet);
}

#endif
