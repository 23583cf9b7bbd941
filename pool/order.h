/** @file order.h
 * The happens-before order between operations on CUDA streams.
 *
 *   calls in host order -> vector clocks -> "has that access completed before this can start?"
 *
 * "Ordered" is a promise: the access has completed before the operation asked about can begin, in every
 * execution that CUDA allows for the calls that were told. "Not ordered" is everything else, also what cannot
 * be followed. Every rule below errs to that side, and so does a caller who leaves out a launch, a wait or a
 * synchronisation. What a caller may NOT leave out, because that could make a false promise: stream destroy
 * and create, event destroy, records of events (tell rp_order_event_unknown for those that cannot be
 * followed), the begin of a capture, thread exit. Each call is told once, after it succeeded; a call that
 * failed is not told.
 *
 * What makes order. The clock of a stream or thread is all that has completed when its next thing begins.
 *
 * - Operation on a stream: after all earlier ones of the stream, and after what the calling thread knew.
 * - Programmatic launch: after the start, not the completion, of the operation before it in the stream, and
 *   after what the thread knew; waits and legacy barriers in between do not count. Later ordinary operations
 *   are after its completion and after that of all before it.
 * - Record and wait: an event is the stream's clock at the latest record; a wait uses the record that is the
 *   latest when the wait is called, and is itself something the stream does in its order.
 * - Launch attributes: a programmatic event says only that the launch has begun, a launch completion event
 *   nothing at all; both replace what was recorded before.
 * - Legacy stream: an operation, a record or a wait on it is after everything told so far on the context's
 *   blocking streams, and what follows on those is after it. Programmatic launches: neither.
 * - Per-thread stream: a blocking stream, one for each thread and context.
 * - Host synchronisation with a stream, event or context: the thread then knows that clock. A query that said
 *   "done" is one. Synchronising the legacy stream covers the context's blocking streams too.
 * - Graph launch: an operation, also after the previous launch of the same executable graph.
 * - Host function: an operation; nothing it does makes order.
 * - Capture: captured calls make no order and captured accesses have none; a wait on a captured event draws
 *   the waiting stream into the capture.
 *
 * No order: between threads, other than through streams and events; stream destroy (its work goes on); wait
 * and write value; events of another process or recorded inside graphs; frees (the driver only says they may
 * synchronise).
 *
 * Several threads: see rp_order_begin. Told call by call, as by most functions below, the order is right for
 * calls that did not overlap.
 *
 * Memory is bounded and had at create; nothing later allocates. What does not fit has no order and is
 * counted. Clocks hold one component for each stream (and thread) that accesses were recorded on. A component
 * is taken again after its owner is gone; tokens of the former owner then are stale: never ordered.
 *
 * Pure: no CUDA, no I/O, no clock. The owner serialises all calls for one rp_order.
 */
#ifndef RP_POOL_ORDER_H
#define RP_POOL_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Stream handles with a meaning of their own, as in struct rp_event. 0 is an unknown stream: no order. */
#define RP_ORDER_STREAM_UNKNOWN UINT64_C(0)
#define RP_ORDER_STREAM_LEGACY UINT64_C(1)
#define RP_ORDER_STREAM_PER_THREAD UINT64_C(2)

/** rp_order_site.flags: a launch with programmatic stream serialisation. */
#define RP_ORDER_PROGRAMMATIC 1u
/** rp_order_site.flags: the caller knows that this call is captured into a graph. Told captures need no flag.
 */
#define RP_ORDER_CAPTURED 2u
/** rp_order_site.flags: work that may wait for something outside of all streams: a host function, or a wait
 * for a value in memory. To be told always. */
#define RP_ORDER_OUTSIDE 4u

/** Where a call is made: which stream of which context, by which thread. */
struct rp_order_site {
  uint64_t context; /**< needed for the two default streams, otherwise ignored; 0 = unknown */
  uint64_t stream;  /**< handle, unique in the process while it lives, or RP_ORDER_STREAM_* */
  uint64_t thread;  /**< never that of another thread that exited untold; 0 = unknown: knows nothing */
  uint32_t flags;   /**< RP_ORDER_PROGRAMMATIC, RP_ORDER_CAPTURED, RP_ORDER_OUTSIDE */
};

/** An access: component in the upper 16 bits (plus one), position in the lower 48. A plain value, valid for
 * ever: once its component has another owner it just is never ordered again. */
typedef uint64_t rp_order_token;
/** An access whose order is not known: before nothing. */
#define RP_ORDER_TOKEN_UNKNOWN UINT64_C(0)

/** Milestones that there can be, if not told otherwise. */
#define RP_ORDER_MILESTONES 1024

/** Bounds. A zero takes the default. */
struct rp_order_limits {
  uint32_t contexts;   /**< default 16 */
  uint32_t streams;    /**< that exist at a time, default 512 */
  uint32_t threads;    /**< that have synchronised or accessed, default 256 */
  uint32_t components; /**< streams and threads with recorded accesses, default 64, at most 65535 */
  uint32_t events;     /**< with something recorded, default 4096; the oldest make room */
  uint32_t graphs;     /**< executable graphs launched, default 256; the oldest make room */
  uint32_t calls;      /**< begun and not ended at a time, default 256 */
  uint32_t milestones; /**< default RP_ORDER_MILESTONES */
};

/** What did not fit, and what could not be followed. */
struct rp_order_counts {
  uint64_t operations;          /**< told, with or without an access */
  uint64_t streams_dropped;     /**< calls on a stream for which there was no room */
  uint64_t threads_dropped;     /**< synchronisations of a thread for which there was no room */
  uint64_t contexts_dropped;    /**< calls in a context for which there was no room */
  uint64_t components_dropped;  /**< accesses without order for want of a component */
  uint64_t components_recycled; /**< components taken again: tokens of the former owner became stale */
  uint64_t events_evicted;      /**< records forgotten to make room */
  uint64_t events_dropped;      /**< records for which no room could be made */
  uint64_t graphs_evicted;      /**< executable graphs forgotten to make room */
  uint64_t captured;            /**< calls that were captured and therefore made no order */
  uint64_t calls_dropped;       /**< calls for which there was no room while they went on */
  bool lost;                    /**< rp_order_lost was called: nothing is ordered any more */
};

struct rp_order;

/** Creates an empty order. `limits` may be NULL. RP_ERROR_NO_MEMORY, RP_ERROR_INVALID (a limit too large). */
rp_status rp_order_create(const struct rp_order_limits *limits, struct rp_order **out);
/** NULL is fine. */
void rp_order_destroy(struct rp_order *order);
struct rp_order_counts rp_order_counts(const struct rp_order *order);
/** Bytes held, all of them since rp_order_create. */
size_t rp_order_bytes(const struct rp_order *order);

/* ---- streams, threads, contexts come and go ---- */

/** A stream was created. One that was not told is taken for non-blocking and of no context. */
void rp_order_stream_create(struct rp_order *order, uint64_t context, uint64_t stream, bool blocking);
/** A stream was destroyed: no order, and the legacy stream no longer waits for its work. Events recorded on
 * it and synchronising its context still order its accesses. */
void rp_order_stream_destroy(struct rp_order *order, uint64_t stream);
/** A thread ended, and with it its per-thread default streams. Its id may come back. */
void rp_order_thread_exit(struct rp_order *order, uint64_t thread);
/** A context was destroyed, with its streams. */
void rp_order_context_destroy(struct rp_order *order, uint64_t context);

/* ---- work ---- */

/** A launch, copy, memset, host function or transfer on a stream that touches what matters. */
rp_order_token rp_order_access(struct rp_order *order, const struct rp_order_site *site);
/** The same for work whose own completion nobody will ask about. Worth telling on the legacy stream, which
 * orders others. */
void rp_order_work(struct rp_order *order, const struct rp_order_site *site);
/** A launch of the executable graph `exec`; what it does inside is unknown. */
rp_order_token rp_order_graph_launch(struct rp_order *order, const struct rp_order_site *site, uint64_t exec);
/** The executable graph is gone; its handle may come back. */
void rp_order_graph_destroy(struct rp_order *order, uint64_t exec);
/** The host itself touched something, and was done when it called this. Ordered before what the thread does
 * next. */
rp_order_token rp_order_host_access(struct rp_order *order, uint64_t thread);

/** Kinds of synchronous copy (CUDA, "API synchronization behavior"). */
enum rp_order_copy {
  RP_ORDER_COPY_UNKNOWN = 0,        /**< the host may not have waited */
  RP_ORDER_COPY_PAGEABLE_TO_DEVICE, /**< returns once staged */
  RP_ORDER_COPY_PINNED_TO_DEVICE,   /**< the host waited */
  RP_ORDER_COPY_DEVICE_TO_HOST,     /**< the host waited */
  RP_ORDER_COPY_DEVICE_TO_DEVICE,   /**< asynchronous, whatever the name of the call */
  RP_ORDER_COPY_HOST_TO_HOST        /**< the host waited */
};
/** A copy of the synchronous family (not Async; memsets return early: rp_order_access). Site.stream is the
 * default stream that its entry point uses.
 */
rp_order_token rp_order_copy_sync(struct rp_order *order, const struct rp_order_site *site,
                                  enum rp_order_copy kind);

/* ---- events ---- */

/** What a record stands for. */
enum rp_order_record {
  RP_ORDER_RECORD_STREAM = 0,   /**< cuEventRecord: all work of the stream so far */
  RP_ORDER_RECORD_PROGRAMMATIC, /**< launch attribute of the work just told: it has begun */
  RP_ORDER_RECORD_LAUNCHED /**< launch completion attribute of the work just told: best effort, no order */
};
/** `event` was recorded at `site`. Never-recorded events have no order. */
void rp_order_event_record(struct rp_order *order, const struct rp_order_site *site, uint64_t event,
                           enum rp_order_record kind);
/** Later work on the site's stream waits for the latest record of `event`. */
void rp_order_event_wait(struct rp_order *order, const struct rp_order_site *site, uint64_t event);
/** The latest record of `event` is one that cannot be followed (all work of a green context, for one). */
void rp_order_event_unknown(struct rp_order *order, uint64_t event);
/** `event` may be recorded by others at any time: opened from another process, or recorded inside a graph. It
 * makes no order until it is destroyed. */
void rp_order_event_foreign(struct rp_order *order, uint64_t event);
/** `event` was destroyed (or created: both say that nothing is recorded in it). */
void rp_order_event_destroy(struct rp_order *order, uint64_t event);

/* ---- the host waited, or a query said "done" ---- */

void rp_order_sync_stream(struct rp_order *order, const struct rp_order_site *site);
void rp_order_sync_event(struct rp_order *order, uint64_t thread, uint64_t event);
/** cuCtxSynchronize, cudaDeviceSynchronize: all streams of the context, also those destroyed. */
void rp_order_sync_context(struct rp_order *order, uint64_t thread, uint64_t context);

/* ---- stream capture ---- */

void rp_order_capture_begin(struct rp_order *order, const struct rp_order_site *site);
/** The capture that began on the site's stream ended or was given up; all streams drawn into it are free
 * again. */
void rp_order_capture_end(struct rp_order *order, const struct rp_order_site *site);

/* ---- calls of several threads at once ---- */

/** Something that must not be left out could not be told: from now on nothing is ordered. */
void rp_order_lost(struct rp_order *order);

/** A call between rp_order_begin and its end; 0 = none, which every end takes and does nothing. A plain
 * value: once ended it means nothing any more. */
typedef uint64_t rp_order_call;

/** What rp_order_begin is told of; `object` is an event or an executable graph. */
enum rp_order_kind {
  RP_ORDER_WORK = 0,          /**< launch, copy, memset, host function */
  RP_ORDER_GRAPH_LAUNCH,      /**< object: the executable */
  RP_ORDER_RECORD,            /**< object: event; all work of the stream so far */
  RP_ORDER_START_RECORD,      /**< programmatic event of the launch that begins at the same time and site */
  RP_ORDER_COMPLETION_RECORD, /**< launch completion event of it: no order */
  RP_ORDER_UNFOLLOWED_RECORD, /**< see rp_order_event_unknown; site: thread only */
  RP_ORDER_WAIT,              /**< object: event */
  RP_ORDER_SYNC_STREAM,       /**< also a query, if it says "done" */
  RP_ORDER_SYNC_EVENT,        /**< object: event; site: thread only */
  RP_ORDER_SYNC_CONTEXT,      /**< site: context and thread only */
  RP_ORDER_CAPTURE_BEGIN,
  RP_ORDER_CAPTURE_END,
  RP_ORDER_MILESTONE /**< object: number, see below */
};

/** A call begins. Where threads call at once, nobody knows which of two overlapping calls came first, and one
 * that is told when it has returned may be told behind one that it came before. So it is told twice. What it
 * comes after is what had been told when it began; what it did counts from its end on; a record that overlaps
 * with another record or wait of its event makes no order, and what overlaps with the begin or end of a
 * capture counts as captured. Then "ordered" is true whatever came first.
 *
 * Destroying a stream, event, graph or context is told before the call, creating after it, by the functions
 * above. The thread of `site` must not be 0. 0 without room. */
rp_order_call rp_order_begin(struct rp_order *order, enum rp_order_kind kind,
                             const struct rp_order_site *site, uint64_t object);
/** The same for an event that a launch records by its attributes (START_RECORD, COMPLETION_RECORD): it begins
 * and ends with `launch`. False without room: nothing is told, see rp_order_event_foreign. */
bool rp_order_begin_with(struct rp_order *order, rp_order_call launch, enum rp_order_kind kind,
                         uint64_t event);
/** Where a call that goes on was made, NULL if it does not. */
const struct rp_order_site *rp_order_call_site(const struct rp_order *order, rp_order_call call);
/** It succeeded (work: without an access). */
void rp_order_end(struct rp_order *order, rp_order_call call);
/** Work or a graph launch succeeded: its token, also where `call` is 0 (then unknown). */
rp_order_token rp_order_end_access(struct rp_order *order, rp_order_call call);
/** Work succeeded that is a copy of the synchronous family. Its token if `access`, else unknown. */
rp_order_token rp_order_end_copy(struct rp_order *order, rp_order_call call, enum rp_order_copy kind,
                                 bool access);
/** An access that was launched some time ago, by a call whose begin was not told: what it came after is not
 * known. */
rp_order_token rp_order_access_past(struct rp_order *order, const struct rp_order_site *site);
/** The same for a wait: it orders what was recorded in `event`, and no more. */
void rp_order_event_wait_past(struct rp_order *order, const struct rp_order_site *site, uint64_t event);
/** It failed: nothing happened. */
void rp_order_cancel(struct rp_order *order, rp_order_call call);
/** Have accesses been told? While not, nothing can be ordered. */
bool rp_order_has_accesses(const struct rp_order *order);
/** Are captures going on? */
bool rp_order_captures(const struct rp_order *order);
/** An event may have been recorded as part of a capture, untold: until the captures end, waits for events
 * that are not known draw their streams in. */
void rp_order_capture_unsure(struct rp_order *order);
/** Would work on a legacy stream tell it anything new? While not, work there that is no access need not be
 * told. */
bool rp_order_legacy_learns(const struct rp_order *order);

/* ---- milestones ---- */

/* Events of the caller's own, recorded on a stream right behind an access (rp_order_begin with
 * RP_ORDER_MILESTONE before it is recorded, then end or cancel). Who has to wait for the access waits for the
 * first milestone behind it, and so for nothing that was put on the stream later. They have numbers from 1 to
 * limits.milestones, which the caller gives; one that is begun again must have been dropped before. */

/** The event of that number means nothing any more, or is about to be recorded anew. */
void rp_order_milestone_drop(struct rp_order *order, uint64_t number);
/** Later work on the site's stream waits for the milestone. Told after the wait was made. */
void rp_order_milestone_wait(struct rp_order *order, const struct rp_order_site *site, uint64_t number);
/** The thread knows that the milestone was reached. */
void rp_order_milestone_sync(struct rp_order *order, uint64_t thread, uint64_t number);

/* ---- questions: change nothing, O(1) for a token ---- */

/** Would an operation issued now at `site` begin after the access completed? (That a graph launch comes after
 * the previous one of its executable is not considered.) */
bool rp_order_before(const struct rp_order *order, rp_order_token token, const struct rp_order_site *site);
/** Does `thread` know that the access completed? */
bool rp_order_before_host(const struct rp_order *order, rp_order_token token, uint64_t thread);
/** Is the token of a component that has another owner now, or unknown? Such an access never becomes ordered.
 */
bool rp_order_stale(const struct rp_order *order, rp_order_token token);

/** Does some thread know that the access completed? Then it has. An access of the host always has. */
bool rp_order_complete(const struct rp_order *order, rp_order_token token);
/** The context of the site's stream, as far as was told; 0 = unknown. */
uint64_t rp_order_context_at(const struct rp_order *order, const struct rp_order_site *site);
/** Is an operation at `site` captured into a graph, as far as was told? */
bool rp_order_capturing(const struct rp_order *order, const struct rp_order_site *site);

/* ---- the accesses of one tenant ---- */

#define RP_ORDER_FRONTIER 8

/** The latest access of each component: all that is needed to know whether every access completed. All zero
 * is empty. */
struct rp_order_frontier {
  rp_order_token latest[RP_ORDER_FRONTIER];
  uint8_t count;
  bool unknown; /**< an access without known order, or more than RP_ORDER_FRONTIER components */
};
void rp_order_frontier_add(const struct rp_order *order, struct rp_order_frontier *frontier,
                           rp_order_token token);
/** Are all accesses of the frontier before an operation issued now at `site`? True when there are none. */
bool rp_order_frontier_before(const struct rp_order *order, const struct rp_order_frontier *frontier,
                              const struct rp_order_site *site);

/** What would close a gap. */
enum rp_order_fix {
  RP_ORDER_FIX_WAIT, /**< let the site's stream wait for `milestone`, or where that is 0 for an event recorded
                        now on `stream` of `context` */
  RP_ORDER_FIX_CONTEXT, /**< the stream is gone or another thread's default stream: synchronise `context` */
  RP_ORDER_FIX_NONE     /**< nothing known would: use other memory, or wait for everything */
};
/** One missing edge. */
struct rp_order_gap {
  enum rp_order_fix fix;
  uint64_t context, stream, thread; /**< where the unordered access was made; 0 = unknown */
  rp_order_token token;
  uint64_t milestone; /**< number of the first one behind the access, 0 = none */
};
/** The fewest waits that would order the whole frontier before `site`: a milestone or stream that is itself
 * after another access stands for both. Writes at most RP_ORDER_FRONTIER + 1 gaps to `gaps`, and returns how
 * many; 0 when all is ordered. Once the waits have been made and told, rp_order_frontier_before says true
 * (unless a fix was NONE, or the site is programmatic). */
size_t rp_order_gaps(const struct rp_order *order, const struct rp_order_frontier *frontier,
                     const struct rp_order_site *site, struct rp_order_gap gaps[RP_ORDER_FRONTIER + 1]);

/** Would a wait for the gap's milestone, or for what its stream has been given so far, be one for work that
 * waits for something outside of all streams (RP_ORDER_OUTSIDE), is not known to be complete, and is not
 * before `site` anyway? Then it may be one for the site itself, and never end. O(components). */
bool rp_order_may_stall(const struct rp_order *order, const struct rp_order_gap *gap,
                        const struct rp_order_site *site);

/** Who made the access, as the gap between it and the host: FIX_WAIT: when `milestone` has been reached, or
 * where that is 0 `stream` has done the work it has been given, it is complete; FIX_CONTEXT: the stream
 * cannot be asked, but `context` can; FIX_NONE: nothing known would tell. */
struct rp_order_gap rp_order_owner(const struct rp_order *order, rp_order_token token);
/** Is the access before the gap's milestone? False where the gap has none. */
bool rp_order_gap_covers(const struct rp_order *order, const struct rp_order_gap *gap, rp_order_token token);

#ifdef __cplusplus
}
#endif
#endif
