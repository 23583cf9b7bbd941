/** @file order_internal.h
 * What the parts of pool/order share: the tables, and the few moves on clocks that all rules are made of.
 */
#ifndef RP_POOL_ORDER_INTERNAL_H
#define RP_POOL_ORDER_INTERNAL_H

#include "pool/order.h"
#include "pool/order_index.h"

#define RP_ORDER_CAPTURE_LOST UINT64_MAX /**< drawn into a capture, but which one is not known */

/* Versions come from one counter, so that equal versions mean the same clock with the same content. */

struct rp_order_context {
  uint64_t *all;      /**< join over every stream there has been */
  uint64_t *blocking; /**< join over the blocking ones, without the legacy stream */
  uint64_t blocking_version;
  uint64_t id;        /**< 0: not in use */
  bool blocking_told; /**< `blocking` has changed since it was created */
  uint32_t legacy;    /**< stream slot, RP_ORDER_NO_SLOT while it has done nothing that matters */
};

struct rp_order_stream {
  uint64_t
      *full; /**< what has completed once all that the stream was told has: the clock of its next operation */
  /** Clock of the latest operation's start. While not `split` it equals `full`; its own component is
   * `start_own`. */
  uint64_t *start;
  uint64_t start_own;
  uint64_t version;                                 /**< of `full` */
  uint64_t seen_thread, seen_legacy, seen_blocking; /**< versions of what was joined last */
  uint64_t capture;                                 /**< 0 = not capturing */
  uint32_t context, component;                      /**< slots, or RP_ORDER_NO_SLOT */
  bool split, blocking, legacy;
};

struct rp_order_thread {
  uint64_t *clock;
  uint64_t version;
  uint32_t component;
};

enum rp_order_event_state {
  RP_ORDER_EVENT_FREE,
  RP_ORDER_EVENT_RECORDED,
  RP_ORDER_EVENT_CAPTURED,
  RP_ORDER_EVENT_FOREIGN
};

struct rp_order_event {
  uint64_t *clock;
  uint64_t capture; /**< the capture it was recorded in, 0 = none */
  enum rp_order_event_state state;
};

struct rp_order_milestone {
  uint64_t *clock;
  uint64_t position;  /**< of its stream's component */
  uint32_t component; /**< RP_ORDER_NO_SLOT: not placed */
  bool unsure;        /**< work that waits for something outside may be before it, untold */
};

struct rp_order_graph {
  uint64_t *clock;
  bool used;
};

/** One entry of every clock. Positions go on when it gets a new owner; those up to `base` are the former
 * owners'. */
struct rp_order_component {
  uint64_t position, base;
  uint64_t context, stream, thread; /**< ids of the owner; stream 0 = a thread */
  /** Positions of work that waits for something outside: of the first that was not known to be complete when
   * another one came, and of the last; 0 = none. */
  uint64_t outside_first, outside_last;
  uint32_t next_retired;
  bool alive;
};

/** A call that has begun. */
struct rp_order_pending {
  uint64_t *clock;   /**< what it comes after (work: clock of its start), or what the host will know */
  uint64_t object;   /**< event or executable graph */
  uint64_t position; /**< of the stream's component when it began */
  uint64_t capture, capture_before;                 /**< begin and end of a capture */
  uint64_t seen_thread, seen_legacy, seen_blocking; /**< versions that `clock` includes */
  uint64_t outside;                                 /**< milestone: order->outside_begun when it began */
  rp_order_call with;                               /**< one that ends with it, 0 = none */
  struct rp_order_site site;
  uint32_t stream, component; /**< slots when it began, or RP_ORDER_NO_SLOT */
  uint32_t turn;              /**< tells apart the calls that have had this place */
  enum rp_order_kind kind;
  bool active;
  bool no_room;  /**< the stream found no place */
  bool empty;    /**< it has nothing to tell */
  bool spoiled;  /**< its event or graph was recorded, destroyed or replaced meanwhile */
  bool captured; /**< its stream was in a capture at some time meanwhile */
  bool gone;     /**< its stream was destroyed meanwhile */
};

struct rp_order {
  struct rp_order_limits limits;
  struct rp_order_counts counts;
  struct rp_order_index contexts, streams, threads, events, graphs;
  struct rp_order_context *context;
  struct rp_order_stream *stream;
  struct rp_order_thread *thread;
  struct rp_order_event *event;
  struct rp_order_graph *graph;
  struct rp_order_milestone *milestone; /**< by number - 1 */
  struct rp_order_component *component;
  struct rp_order_pending *call;       /**< limits.calls, and one more for calls told at once */
  uint32_t *call_active, *call_unused; /**< slots */
  uint32_t call_active_count, call_unused_count;
  uint64_t *clocks; /**< slab that all clocks lie in */
  size_t bytes;
  uint32_t width; /**< components ever used: as far as clocks need looking at */
  uint32_t retired_first, retired_last;
  uint32_t event_hand, graph_hand; /**< where the search for the next one to evict begins */
  uint64_t tick;                   /**< source of versions and capture numbers */
  uint64_t outside_begun;          /**< calls begun that may wait for something outside */
  uint32_t milestone_width;        /**< highest number ever placed: as far as they need looking at */
  uint32_t captures_active;
  bool capture_lost;     /**< something captured could not be stored: absent events may be captured ones */
  bool foreign_lost;     /**< a foreign event could not be stored: no event can be trusted */
  bool outside_captured; /**< a graph may hold work that waits for something outside */
  bool outside_lost;     /**< such work could not be stored */
};

/* ---- clocks ---- */

/** into = into ⊔ from; true when that changed anything. */
bool rp_order_clock_join(const struct rp_order *order, uint64_t *into, const uint64_t *from);
/** Has `clock` all that `part` has? */
bool rp_order_clock_covers(const struct rp_order *order, const uint64_t *clock, const uint64_t *part);
void rp_order_clock_copy(const struct rp_order *order, uint64_t *into, const uint64_t *from);
void rp_order_clock_clear(const struct rp_order *order, uint64_t *clock);

/* ---- tables; each may answer NULL: there is none, or no room ---- */

struct rp_order_context *rp_order_find_context(const struct rp_order *order, uint64_t context);
struct rp_order_context *rp_order_get_context(struct rp_order *order, uint64_t context);
struct rp_order_thread *rp_order_find_thread(const struct rp_order *order, uint64_t thread);
struct rp_order_thread *rp_order_get_thread(struct rp_order *order, uint64_t thread);
struct rp_order_stream *rp_order_find_stream(const struct rp_order *order, const struct rp_order_site *site);
struct rp_order_stream *rp_order_get_stream(struct rp_order *order, const struct rp_order_site *site);
struct rp_order_event *rp_order_find_event(const struct rp_order *order, uint64_t event);
/** Makes room by evicting if it has to. */
struct rp_order_event *rp_order_get_event(struct rp_order *order, uint64_t event);
void rp_order_drop_event(struct rp_order *order, uint64_t event);
/** NULL: not placed. */
const struct rp_order_milestone *rp_order_find_milestone(const struct rp_order *order, uint64_t number);
struct rp_order_graph *rp_order_find_graph(const struct rp_order *order, uint64_t exec);
struct rp_order_graph *rp_order_get_graph(struct rp_order *order, uint64_t exec);
struct rp_order_context *rp_order_context_of(const struct rp_order *order,
                                             const struct rp_order_stream *stream);

/** A component for a new owner, or RP_ORDER_NO_SLOT. */
uint32_t rp_order_component_take(struct rp_order *order, uint64_t context, uint64_t stream, uint64_t thread);
/** Next position of the component, as a token. */
rp_order_token rp_order_component_step(struct rp_order *order, uint32_t component);

static inline uint32_t rp_order_token_component(rp_order_token token) {
  return (uint32_t)(token >> 48) - 1; /* RP_ORDER_NO_SLOT for the unknown token */
}
static inline uint64_t rp_order_token_position(rp_order_token token) {
  return token & ((UINT64_C(1) << 48) - 1);
}

/* ---- calls between begin and end: order_call.c ---- */

rp_status rp_order_calls_init(struct rp_order *order);
void rp_order_calls_fini(struct rp_order *order);
/** They overlap with what changes the record of `event`. `capture`: it is a captured record, which may draw
 * in the stream of a wait; else 0. */
void rp_order_spoil_event(struct rp_order *order, uint64_t event, uint64_t capture);
void rp_order_spoil_graph(struct rp_order *order, uint64_t exec);
/** Is a record of `event` going on? */
bool rp_order_recording(const struct rp_order *order, uint64_t event);
/** A capture begins or draws in the site's stream: what goes on there may be part of it. */
void rp_order_mark_captured(struct rp_order *order, const struct rp_order_site *site);
/** Has work begun to be launched that waits for something outside? It may be on any stream before long. */
bool rp_order_outside_goes_on(const struct rp_order *order);
/** The stream in this slot, or of this handle, is destroyed, or the context with its default streams. */
void rp_order_mark_gone_slot(struct rp_order *order, uint32_t stream);
void rp_order_mark_gone(struct rp_order *order, uint64_t stream);
void rp_order_mark_gone_context(struct rp_order *order, uint64_t context);
/** The thread ended inside of calls: what became of them is not known. */
void rp_order_abandon(struct rp_order *order, uint64_t thread);

/* ---- rules: order_ops.c; `call` has its kind, site and object ---- */

void rp_order_call_begin(struct rp_order *order, struct rp_order_pending *call);
/** It succeeded. For work: its token if `access`. */
rp_order_token rp_order_call_end(struct rp_order *order, struct rp_order_pending *call, bool access);
rp_order_token rp_order_copy_end(struct rp_order *order, struct rp_order_pending *call,
                                 enum rp_order_copy kind, bool access);
/** Something that is no operation is before all that follows on the stream. */
void rp_order_stream_join(struct rp_order *order, struct rp_order_stream *stream, const uint64_t *clock);
void rp_order_thread_learns(struct rp_order *order, uint64_t thread, const uint64_t *clock);
void rp_order_event_store(struct rp_order *order, uint64_t event, const uint64_t *clock);
/** The clock of the start of the stream's latest operation. */
void rp_order_copy_start(const struct rp_order *order, uint64_t *clock, const struct rp_order_stream *stream);

/* ---- captures: order_capture.c ---- */

void rp_order_capture_call_begin(struct rp_order *order, struct rp_order_pending *call);
void rp_order_capture_call_end(struct rp_order *order, struct rp_order_pending *call);
/** The begin of a capture failed. */
void rp_order_capture_undo(struct rp_order *order, const struct rp_order_pending *call);
/** A wait begins: does it draw its stream into a capture? */
void rp_order_capture_draw(struct rp_order *order, const struct rp_order_pending *call,
                           const struct rp_order_event *event);
/** A record that becomes part of a graph: waits for it draw streams into the capture. */
void rp_order_record_captured(struct rp_order *order, const struct rp_order_stream *stream, uint64_t event);

/** Entry of the clock of the latest operation's start. */
static inline uint64_t rp_order_start_at(const struct rp_order_stream *stream, uint32_t component) {
  if (component == stream->component) return stream->start_own;
  return stream->split ? stream->start[component] : stream->full[component];
}

#endif
