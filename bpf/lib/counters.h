// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The counters of the programs' decisions, per CPU. */
#ifndef LENO_COUNTERS_H
#define LENO_COUNTERS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, enum counter);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(enum counter counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		*value += 1;
}

#endif
