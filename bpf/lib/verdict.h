// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The decisions on connections, as functions without hooks and maps, so that BPF_PROG_TEST_RUN can test them. */
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

/* Whether a connection to this address is steered to the proxy, passes as local, or is refused as link-local. */
static __always_inline enum outbound_verdict outbound_verdict(const struct socket_address *to)
{
	if (is_loopback(to))
		return OUTBOUND_LOCAL;
	if (is_link_local_ipv6(to))
		return OUTBOUND_LINK_LOCAL;
	return OUTBOUND_STEER;
}

/* What to do with a connection that arrives. Connections of this workload to itself pass: otherwise the proxy's
 * connections to the application would be steered back to the proxy, endlessly. They are recognised by their addresses:
 * - A loopback address on either side. The kernel accepts it only from lo; the other side may be an address of eth0
 *   that the application has bound.
 * - The same address on both sides.
 * - The proxy's stand-in address as the source. Answers to it are routed to lo, so no other host can complete a
 *   handshake from it.
 *
 * The ingress interface cannot be used: for an address of eth0 it is reported as eth0 even over lo.
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
