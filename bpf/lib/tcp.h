// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads the counters that the kernel keeps in each TCP socket. */
#ifndef LENO_TCP_H
#define LENO_TCP_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The fields of the kernel's own structures that are read; their offsets are relocated for the running kernel (CO-RE).
 */
struct minmax_sample {
	__u32 v;
} __attribute__((preserve_access_index));

struct minmax {
	struct minmax_sample s[3];
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u64 bytes_acked;
	__u64 bytes_received;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 segs_out;
	__u32 segs_in;
	__u32 total_retrans;
	__u32 srtt_us;
	struct minmax rtt_min;
} __attribute__((preserve_access_index));

struct kernel_uid {
	__u32 val;
} __attribute__((preserve_access_index));

struct sock {
	struct kernel_uid sk_uid;
	int sk_err;
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
	__u64 net_cookie;
} __attribute__((preserve_access_index));

struct possible_net {
	struct net *net;
} __attribute__((preserve_access_index));

/* The first part of struct sock. */
struct sock_common {
	unsigned char skc_state;
	struct possible_net skc_net;
	unsigned long skc_flags;
} __attribute__((preserve_access_index));

enum sock_flags {
	SOCK_DEAD,
	SOCK_DONE,
};

/* Payload bytes that were sent and received, each counted once, and segments. */
struct tcp_counts {
	__u64 sent;
	__u64 received;
	__u32 segments_sent;
	__u32 segments_received;
	__u32 retransmits;
};

/* Whether the other side's FIN has arrived. */
static __always_inline bool has_fin(struct tcp_sock *tcp)
{
	struct sock_common *sk = (struct sock_common *)tcp;

	return sk->skc_flags & (1UL << bpf_core_enum_value(enum sock_flags, SOCK_DONE));
}

/* Whether this side's FIN has been sent. The state changes before the FIN is queued. So for a moment the result is true
 * too early, and sent_of is one byte too low until the next reading.
 */
static __always_inline bool has_sent_fin(struct tcp_sock *tcp, __u32 state)
{
	bool has_closed = state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2 ||
			  state == BPF_TCP_CLOSING || state == BPF_TCP_LAST_ACK;

	return has_closed && tcp->snd_nxt == tcp->write_seq;
}

/* Payload bytes that were sent, acknowledged or not, each once. The sequence numbers of the SYN (on a client's socket)
 * and of the FIN are subtracted. The kernel's `bytes_sent` is not used: it counts a segment again each time that the
 * interface has dropped it.
 */
static __always_inline __u64 sent_of(struct tcp_sock *tcp, bool is_client)
{
	__u32 state = ((struct sock_common *)tcp)->skc_state;
	__u64 sent, least = is_client;

	if (state == BPF_TCP_SYN_SENT || state == BPF_TCP_SYN_RECV)
		return 0;
	sent = tcp->bytes_acked + (__u32)(tcp->snd_nxt - tcp->snd_una);
	least += has_sent_fin(tcp, state);
	return sent > least ? sent - least : 0;
}

/* The caller must hold the socket's lock, or compare `acknowledged` before and after. `bytes_received` counts the FIN
 * as a byte, which is subtracted.
 */
static __always_inline struct tcp_counts counts_of(struct tcp_sock *tcp, bool is_client)
{
	__u64 received = tcp->bytes_received;

	if (received && has_fin(tcp))
		received--;
	return (struct tcp_counts){
		.sent = sent_of(tcp, is_client),
		.received = received,
		.segments_sent = tcp->segs_out,
		.segments_received = tcp->segs_in,
		.retransmits = tcp->total_retrans,
	};
}

/* A number that changes whenever bytes are acknowledged: the sum of both counters that change then. */
static __always_inline __u64 acknowledged(struct tcp_sock *tcp)
{
	__u64 all = tcp->bytes_acked + tcp->snd_una;

	barrier();
	return all;
}

/* In microseconds. The kernel stores eight times this value. */
static __always_inline __u32 smoothed_rtt_us(struct tcp_sock *tcp)
{
	return tcp->srtt_us >> 3;
}

/* In microseconds; 0 before the first measurement, where the kernel has the largest number. */
static __always_inline __u32 min_rtt_us(struct tcp_sock *tcp)
{
	__u32 us = tcp->rtt_min.s[0].v;

	return us == ~0U ? 0 : us;
}

#endif
