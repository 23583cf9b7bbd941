/** @file nccl_profiler.h
 * The NCCL profiler plugin, which this library is at the same time: it exports ncclProfiler_v1 to _v6.
 */
#ifndef RP_AGENT_NCCL_PROFILER_H
#define RP_AGENT_NCCL_PROFILER_H

#include <stdbool.h>
#include <stddef.h>

/** Sets NCCL_PROFILER_PLUGIN to this library's own path unless the user set it. Once, before threads of ours
 * start. */
void rp_profiler_announce(void);
/** Whether NCCL has taken the plugin; else why not, in words. */
bool rp_profiler_active(char *reason, size_t reason_size);

#endif
