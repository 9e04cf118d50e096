// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Runs the decisions of lib/verdict.h on cases that a test passes as packet data: cgroup hooks have
 * no BPF_PROG_TEST_RUN, tc programs do. Never attached.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "../lib/abi.h"
#include "../lib/address.h"
#include "../lib/verdict.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct decision_case {
	struct capture_config config;
	struct socket_address remote;
	struct socket_address local;
};

#define NO_CASE 255

SEC("tc")
int decide_inbound(struct __sk_buff *skb)
{
	struct decision_case c;

	if (bpf_skb_load_bytes(skb, 0, &c, sizeof(c)))
		return NO_CASE;
	return inbound_verdict(&c.config, &c.remote, &c.local, bpf_ntohs(c.local.port));
}

SEC("tc")
int decide_outbound(struct __sk_buff *skb)
{
	struct decision_case c;

	if (bpf_skb_load_bytes(skb, 0, &c, sizeof(c)))
		return NO_CASE;
	return outbound_verdict(&c.remote);
}
