/** @file agent_internal.h
 * Shared by agent.c and agent_work.c only: the core lock, events, and the sink's functions.
 */
#ifndef RP_AGENT_AGENT_INTERNAL_H
#define RP_AGENT_AGENT_INTERNAL_H

#include "agent/agent.h"
#include "agent/range_filter.h"

/** What is looked for in launches. Written under the core lock, read by anybody. */
extern struct rp_range_filter rp__filter;
/** Set once, before any event. */
extern struct rp_agent_listener rp__listener;

/** rp_agent_lock for an event: counts the one that gets lost where this thread is inside already. */
bool rp__lock_events(void);
/** An event of this thread with everything else empty. */
struct rp_event rp__new_event(enum rp_event_kind kind, enum rp_event_source source);
/** Under the lock: gives the event its place and time, and hands it to the tracker. */
void rp__hand_over(struct rp_event *event);
/** Takes the lock, fills device and operations in, hands over. */
void rp__emit(struct rp_event *event);
/** Launches, copies and memsets that the process has begun. */
uint64_t rp__operations_begun(void);
/** RP_EVENT_FLAG_CAPTURED where the site is. */
uint16_t rp__capture_flag(const struct rp_order_site *site);
/** Under the lock: whether `address` lies in a known allocation. */
bool rp__is_allocation(uint64_t address);

/** The buffers of a snapshot with the channel that each belongs to. *out is freed by the caller. */
rp_status rp__channels_of(const struct rp_snapshot *snapshot, struct rp_guard_channel **out, size_t *count);

/* The sink's, in agent_work.c. */
bool rp__launch_begun(void);
void rp__launch_hit(const struct rp_cuda_launch *launch, const struct rp_launch_words *words);
void rp__launch_done(const struct rp_cuda_launch *launch, const struct rp_launch_words *words);
void rp__op_from_cupti(const struct rp_cuda_op *op);
void rp__op_done(const struct rp_cuda_op *op);

#endif
