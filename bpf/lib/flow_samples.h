// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Passes the first bytes of payloads to user space, which parses requests and responses in them.
 *
 * A request or a response begins where the direction of the payload changes, so the first frame after each change is
 * sampled. So is each frame whose payload fits into a sample, since it may complete a message (trailers), or be the
 * next of several commands. The rest of a large message is not sampled.
 */
#ifndef LENO_FLOW_SAMPLES_H
#define LENO_FLOW_SAMPLES_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "flow_abi.h"
#include "flow_maps.h"

/* The only datagrams that are sampled: DNS. */
#define DNS_PORT 53

/* How many bytes of samples may wait until the reader is woken. With fewer, it finds them when it polls. */
#define SAMPLES_WAKE (1 << 20)

static __always_inline void count_sample(enum flow_sample_count which)
{
	__u64 *value = bpf_map_lookup_elem(&sample_counts, &which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline bool is_sampled(__u32 workload)
{
	struct flow_cap *cap = bpf_map_lookup_elem(&caps, &workload);

	return cap && cap->samples && level_within(cap) == LEVEL_FULL;
}

static __always_inline bool is_read(const struct flow *flow)
{
	if (flow->protocol == IPPROTO_TCP)
		return true;
	return flow->protocol == IPPROTO_UDP &&
	       (local_port_of(flow) == DNS_PORT || remote_port_of(flow) == DNS_PORT);
}

/* Records which side sends payload now; returns whether the other side did before. */
static __always_inline bool turns(struct flow *flow, bool sent)
{
	__u8 talker = sent ? 1 : 2;
	bool turns = flow->family >> FLOW_TALKER_SHIFT != talker;

	flow->family = (flow->family & FLOW_FAMILY_MASK) | talker << FLOW_TALKER_SHIFT;
	return turns;
}

static __always_inline void fill_sample(struct flow_sample *sample, const struct flow *flow)
{
	sample->opened_ns = flow->opened_ns;
	sample->workload = flow->workload;
	sample->peer = flow->peer;
	sample->local_port = local_port_of(flow);
	sample->remote_port = remote_port_of(flow);
	sample->role = flow_role_of(flow);
	sample->protocol = flow->protocol;
}

/* Writes a sample of a frame that has payload, if it is to be sampled. `key` is that of the frame's flow. The upper
 * half of `payload` is the offset of the payload in the frame, the lower half its length. `sequence` is the sequence
 * number, shifted left by one, with `sent` as its lowest bit. This is a global function, so that the verifier checks it
 * once, and not for each path that leads to it. Kernels before 5.13 allow only numbers as arguments of such a function,
 * besides the context.
 */
__attribute__((noinline)) int leno_flow_sample(struct __sk_buff *skb, __u64 key, __u64 now,
					       __u64 payload, __u64 sequence)
{
	__u32 at = payload >> 32, length = payload;
	struct flow_sample *sample;
	struct flow *flow;
	bool is_turn;
	__u64 last, wake;

	if (!length)
		return 0;
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow) {
		/* Without its flow the payload cannot be assigned to a connection. */
		count_sample(FLOW_SAMPLES_LOST);
		return 0;
	}
	if (!is_read(flow))
		return 0;
	is_turn = turns(flow, sequence & 1);
	if (length > FLOW_SAMPLE_BYTES && !is_turn)
		return 0;
	/* The length in IP's header may be more than the frame contains. */
	if (at >= skb->len)
		return 0;
	if (length > skb->len - at)
		length = skb->len - at;
	if (length > FLOW_SAMPLE_BYTES)
		length = FLOW_SAMPLE_BYTES;
	sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
	if (!sample) {
		count_sample(FLOW_SAMPLES_LOST);
		return 0;
	}
	fill_sample(sample, flow);
	sample->key = key;
	sample->at_ns = now;
	sample->payload = payload;
	sample->sequence = sequence >> 1;
	sample->sent = sequence & 1;
	sample->turns = is_turn;
	sample->length = length;
	/* The number of bytes to copy must be 1 to FLOW_SAMPLE_BYTES in a form that all verifiers can follow. clang
	 * compiles a comparison with 1 to `length != 0`, and verifiers before Linux 6.8 derive no lower bound from
	 * that.
	 */
	last = length - 1;
	asm volatile("" : "+r"(last));
	last &= FLOW_SAMPLE_BYTES - 1;
	if (bpf_skb_load_bytes(skb, at, sample->bytes, last + 1)) {
		bpf_ringbuf_discard(sample, BPF_RB_NO_WAKEUP);
		return 0;
	}
	wake = bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA);
	bpf_ringbuf_submit(sample, wake < SAMPLES_WAKE ? BPF_RB_NO_WAKEUP : BPF_RB_FORCE_WAKEUP);
	count_sample(FLOW_SAMPLES_WRITTEN);
	return 0;
}

#endif
