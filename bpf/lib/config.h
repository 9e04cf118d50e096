// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The configuration of the workload that these programs were loaded for. */
#ifndef LENO_CONFIG_H
#define LENO_CONFIG_H

#include <bpf/bpf_helpers.h>

#include "abi.h"

/* In a section of its own, so that the loader can write the whole structure without looking up symbols. */
SEC(".rodata.config") const volatile struct capture_config config;

#endif
