// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The decisions, without hooks and maps, so that they can be tested with BPF_PROG_TEST_RUN. */
#ifndef LENO_VERDICT_H
#define LENO_VERDICT_H

#include "abi.h"
#include "address.h"

enum outbound_verdict {
	OUTBOUND_STEER,
	OUTBOUND_LOCAL,
	OUTBOUND_LINK_LOCAL,
};

enum inbound_verdict {
	INBOUND_STEER,
	INBOUND_LOCAL,
	INBOUND_ADMIN,
	INBOUND_MESH_PORT,
	INBOUND_LINK_LOCAL,
};

/* Whether a connection to this address may be captured. */
static __always_inline enum outbound_verdict outbound_verdict(const struct socket_address *to)
{
	if (is_loopback(to))
		return OUTBOUND_LOCAL;
	if (is_link_local_ipv6(to))
		return OUTBOUND_LINK_LOCAL;
	return OUTBOUND_STEER;
}

/* What to do with a connection that arrives. Connections of this workload to itself pass: otherwise
 * the proxy's connections to the application would be steered back to the proxy, endlessly. They
 * are recognised by their addresses: a loopback address on either side (the kernel accepts those
 * only from lo; the other side may be an address of eth0 that the application bound), the same
 * address on both, or the proxy's stand-in address as the source (answers to it are routed to lo,
 * so no other host can complete a handshake from it). The ingress interface cannot be used: for an
 * address of eth0 it is reported as eth0 even over lo.
 */
static __always_inline enum inbound_verdict
inbound_verdict(const volatile struct capture_config *c, const struct socket_address *remote,
		const struct socket_address *local, __u32 local_port)
{
	if (is_loopback(remote) || is_loopback(local) || same_ip(remote, local) ||
	    is_stand_in(remote))
		return INBOUND_LOCAL;
	if (local_port == c->inbound_port || local_port == c->outbound_port)
		return INBOUND_MESH_PORT;
	if (is_link_local_ipv6(local))
		return INBOUND_LINK_LOCAL;
	if (local_port == c->admin_port)
		return INBOUND_ADMIN;
	return INBOUND_STEER;
}

#endif
