/** @file guard.h
 * The guard: one device's pool, the order of its streams and the evidence of release, as one thing that the
 * injected library asks before a call and tells after it.
 *
 *   before a call   rp_guard_*_prepare -> action -> (the caller acts) -> rp_guard_*_commit
 *   after success   rp_guard_*_launched
 *   too late        rp_guard_access_seen: from a driver callback, where nothing can be changed any more
 *
 * It learns per buffer what reads a received message (functions and how many), and takes a message for
 * released when that has been launched again. It finds steps by itself: a step ends when a buffer is received
 * into again. At a step boundary it activates pooling (auto; with a plan: of what the plan has no place for),
 * carries out fallbacks, and makes pinned buffers private.
 *
 * Shadow: the same over memory that does not exist. Buffers are told with rp_guard_shadow_alloc, and what is
 * counted is what enforcing would have prevented. Prepare carries everything out by itself and answers GO;
 * only a boundary is asked for as it is otherwise, because it needs the channels (nothing to wait for: `idle`
 * is empty).
 *
 * Pure: no CUDA, no file, no thread, no clock (times are given). The owner serialises all calls; while an
 * action is carried out (between prepare and commit) no other function of this guard may be called, except
 * the rp_guard_pending_* queue.
 */
#ifndef RP_POOL_GUARD_H
#define RP_POOL_GUARD_H

#include "pool/order.h"
#include "pool/pool.h"
#include "recvpool/event.h"

#define RP_GUARD_ACTION_WAITS (RP_ORDER_FRONTIER + 1)

/** Where a message's buffer belongs, as the tracker found it: which buffers share, and names for the report.
 */
struct rp_guard_channel {
  uint64_t address;    /**< begin of the receive buffer */
  uint64_t label;      /**< equal labels share slots */
  int32_t stage;       /**< -1: not known */
  uint32_t direction;  /**< enum rp_direction */
  uint32_t microbatch; /**< within its channel */
};

/** One class of a plan, for this rank. */
struct rp_guard_planned_class {
  uint64_t label;
  uint64_t receive_bytes;
  uint32_t slots;   /**< K, slack included */
  uint32_t buffers; /**< N; 0 = not known */
  int32_t stage;
  uint32_t direction;
};

/** One receive of a step, in the order of posting. */
struct rp_guard_planned_receive {
  uint32_t class_index, slot, microbatch;
  uint32_t source;     /**< which peer sends it: equal numbers, equal peers */
  uint64_t begin, end; /**< positions: released before position p when end < p */
  uint32_t accesses;   /**< that read it, where an earlier run counted them; else 0 */
  uint32_t readers;    /**< parts of the schedule that read it, so at least as many accesses; 0 = not known */
  int32_t stage;       /**< and direction: messages of one stage and direction are read alike */
  uint32_t direction;
};

/** What is known before the first step. Arrays are copied.
 *
 * A list that says of no receive how often it is read, or no list at all, is no evidence of release: then the
 * sizes say what to watch, and the slots how many there are at least once buffers share, as in auto mode. Nor
 * is one in which a peer sends both activations and gradients: in a run of another schedule, a message could
 * not be told from one of the other kind, nor a send that answers it from one that passes another on. */
struct rp_guard_plan {
  const struct rp_guard_planned_class *classes;
  uint32_t class_count;
  const struct rp_guard_planned_receive *receives; /**< NULL: sizes and slots only */
  size_t receive_count;
};

/** Options; zero fields take the default in brackets. */
struct rp_guard_options {
  bool shadow;
  bool strict;           /**< take a released buffer's mapping away until its next receive */
  bool unguarded;        /**< tests only: decide, count, but neither grow nor wait */
  bool blind;            /**< driver callbacks report nothing: memory is never shared */
  bool every_touch_seen; /**< driver callbacks report all accesses: untouched memory may be lent */
  uint32_t slack;        /**< slots beyond D, used as given */
  bool slack_auto;       /**< find it: see rp_guard_report.slack */
  uint64_t least_bytes;  /**< auto: smaller allocations are left to the driver [granularity / 2] */
  /** Auto: only receives of this size, or into allocations of it; 0 = all. An allocator may have rounded the
   * allocation up, within the same mapped size. */
  uint64_t only_bytes;
  /** Auto without only_bytes: an allocation that rounding to the granularity would make larger by more than
   * its size over this is left to the driver [64]. Most such are no receive buffers, and gain nothing for it.
   */
  uint32_t rounding_divisor;
  enum rp_pool_policy on_violation;
  uint32_t watch_steps;    /**< auto: steps of one pattern before activation [2] */
  uint32_t max_conflicts;  /**< kept in full [256] */
  uint64_t headroom_bytes; /**< see struct rp_pool_options [0] */
  /** rp_guard_sent or rp_guard_send is called for every send. Then what a step did to a message counts as
   * evidence only if as many went back to its peer as came from it, over the same communicator or one of the
   * same members: else it was an evaluation, and training on the same buffers reads them more often. */
  bool sends_told;
};

struct rp_guard;

/** New guard over `backend` (in shadow only its granularity is asked; NULL there means 2 MiB) and `order`,
 * which it does not own and which outlives it; several guards share one order. `plan` may be NULL: auto. A
 * plan that cannot be used is named in the report, and the guard is then an auto one that never activates.
 * RP_ERROR_NO_MEMORY, RP_ERROR_INVALID, or what the backend said. */
rp_status rp_guard_create(const struct rp_guard_options *options, const struct rp_backend *backend,
                          struct rp_order *order, const struct rp_guard_plan *plan, struct rp_guard **out);
/** The device is done with everything. What could not be given back: `left_bytes` (may be NULL). */
rp_status rp_guard_destroy(struct rp_guard *guard, uint64_t *left_bytes);

/** Told when an address range has to be watched for accesses, and when not any more (may be NULL). Ranges are
 * whole buffers, each told once. `same_members` (may be NULL: nobody can tell) is asked whether two
 * communicators surely have the same processes under the same ranks, so that what is sent over the one can
 * answer what came over the other. All are called from inside the functions below. */
struct rp_guard_sink {
  void *context;
  void (*watch)(void *context, uint64_t begin, uint64_t end);
  void (*unwatch)(void *context, uint64_t begin, uint64_t end);
  bool (*same_members)(void *context, uint64_t comm, uint64_t other);
};
void rp_guard_set_sink(struct rp_guard *guard, const struct rp_guard_sink *sink);

/* ---- memory ---- */

/** Whether an allocation of that size is one for the guard. Cheap. */
bool rp_guard_wants(const struct rp_guard *guard, uint64_t bytes);
/** Acts (the backend is called). On failure nothing has changed and the driver's own allocation is to be
 * used.
 */
rp_status rp_guard_allocate(struct rp_guard *guard, uint64_t bytes, uint64_t *address);
/** Acts. rp_pool_unstoppable and rp_pool_memory_short, for guards with a plan; others never leave memory out.
 */
rp_status rp_guard_unstoppable(struct rp_guard *guard);
uint64_t rp_guard_memory_short(struct rp_guard *guard);
/** rp_pool_memory_news, and rp_pool_memory_due: then rp_guard_unstoppable has something to do again. Cheap.
 */
void rp_guard_memory_news(struct rp_guard *guard);
bool rp_guard_memory_due(const struct rp_guard *guard);
/** Acts. rp_pool_restore: to be called until nothing is lost, or as long as one cares to wait, before the
 * call that moved memory goes on. */
rp_status rp_guard_restore(struct rp_guard *guard);
/** Whether the driver has left an address of ours without its memory. Cheap. */
bool rp_guard_lost(const struct rp_guard *guard);
/** Whether the buffer at `address` (its begin) is ours: RP_OK; RP_ERROR_STATE: it was, and was freed already
 * (counted as a double free with its last receive, `site` being the second free); RP_ERROR_NOT_FOUND.
 * `needs_idle`: something may still be using it, the device must be done with it before rp_guard_free. */
rp_status rp_guard_free_prepare(struct rp_guard *guard, uint64_t address, const struct rp_pool_site *site,
                                bool *needs_idle);
/** Acts. */
rp_status rp_guard_free(struct rp_guard *guard, uint64_t address);
/** The driver gave [address, address + bytes) to the program by itself: what we freed there before is not
 * freed twice when that is freed. To be told of every allocation that is not ours. Cheap. */
void rp_guard_address_reused(struct rp_guard *guard, uint64_t address, uint64_t bytes);
/** The context is gone, and all memory with it as far as the program knows. Acts. The device must be done. */
void rp_guard_release_all(struct rp_guard *guard);
/** Shadow only: the program's own allocation came or goes. */
void rp_guard_shadow_alloc(struct rp_guard *guard, uint64_t address, uint64_t bytes);
void rp_guard_shadow_free(struct rp_guard *guard, uint64_t address);
/** Whether `address` lies in a buffer of ours, and where that begins; `backed`: memory is behind it (all may
 * be NULL). For pointer queries. */
bool rp_guard_owns(const struct rp_guard *guard, uint64_t address, uint64_t *begin, uint64_t *bytes,
                   bool *backed);
/** Which ways out of our sight (RP_POOL_FLAG_*) the buffer at `address` has; 0 where there is no buffer. */
uint32_t rp_guard_flags(const struct rp_guard *guard, uint64_t address);
/** Whether some buffer shares memory now. */
bool rp_guard_sharing(const struct rp_guard *guard);
/** Begin of some buffer of ours that has memory; 0 if there is none. */
uint64_t rp_guard_backed_example(const struct rp_guard *guard);

/* ---- what has to be done before a call goes on ---- */

enum rp_guard_next {
  RP_GUARD_GO = 0, /**< nothing; it is committed already */
  RP_GUARD_ACT,    /**< see the fields, then commit */
  RP_GUARD_REFUSE, /**< policy abort, or the call would overwrite data and no memory can be had */
};

struct rp_guard_action {
  enum rp_guard_next next;
  /** Make the call's stream wait for the milestone of each of them. Where it has none: record an event on
   * waits[i].stream of waits[i].context, let the stream wait for that. Tell the order. */
  struct rp_order_gap waits[RP_GUARD_ACTION_WAITS];
  size_t wait_count;
  /** Before commit the host must know that these milestones were reached, and where there is none that the
   * work of the stream so far is complete (fix CONTEXT: of the whole context; context 0: the calling
   * thread's). Ask with queries, outside of all locks, tell the order (record and synchronisation of the
   * mark's event, or of the context) and rp_guard_idle_reached, and prepare again if anything else went on
   * meanwhile. */
  struct rp_order_gap idle[RP_GUARD_ACTION_WAITS];
  size_t idle_count;
  bool boundary; /**< a step ends here and something waits for it: see rp_guard_boundary; `idle` may be waited
                    for as long as the caller likes, or the boundary left for the next step */
  bool abort;    /**< policy: end the process after the report */
  struct rp_pool_decision decision; /**< for commit */
  uint64_t serial;                  /**< for rp_guard_idle_reached */
  const char *why; /**< REFUSE: one sentence. Of a receive with ACT: for the case that its commit fails */
};

/** What `action->idle` asked for was reached, counted from when the action was prepared. Needed where a fix
 * was CONTEXT, for accesses whose order is unknown; harmless otherwise. */
void rp_guard_idle_reached(struct rp_guard *guard, const struct rp_guard_action *action);

/* ---- receives ---- */

struct rp_guard_receive {
  uint64_t address, bytes, comm;
  int32_t peer;
  struct rp_order_site site; /**< of the receive */
  uint64_t seq, time_ns;
  uint64_t group; /**< not 0: the open NCCL group it is part of, unique per group */
  /** Of the allocation that it lies in, where that is none of ours; 0: not known. */
  uint64_t allocation_address, allocation_bytes;
};

/** RP_ERROR_NOT_FOUND: no buffer of ours, nothing to do. */
rp_status rp_guard_receive_prepare(struct rp_guard *guard, const struct rp_guard_receive *receive,
                                   struct rp_guard_action *action);
/** Acts. RP_ERROR_STATE: out of date, prepare again. Any other failure: the receive must not go on. */
rp_status rp_guard_receive_commit(struct rp_guard *guard, const struct rp_guard_receive *receive,
                                  const struct rp_guard_action *action);
/** NCCL has launched it: after the call, or after the end of its group, has succeeded. Until then the
 * buffer's order is unknown. Tells the order (rp_order_access) if the buffer is ours. True: it shares memory,
 * and a milestone behind the call is of use (RP_ORDER_MILESTONE). */
bool rp_guard_receive_launched(struct rp_guard *guard, const struct rp_guard_receive *receive);
/** The same for a caller that has told the order itself, of the call or of its group: `token` is what that
 * answered. */
void rp_guard_receive_ordered(struct rp_guard *guard, const struct rp_guard_receive *receive,
                              rp_order_token token);
/** A send of `bytes` to that peer is posted, from whatever memory (options: sends_told). Told before the
 * call. With it, a plan of sizes alone takes messages for released only as fast as they are answered. Cheap.
 */
void rp_guard_sent(struct rp_guard *guard, uint64_t comm, int32_t peer, uint64_t bytes);
/** The same where the size is not known: for options.sends_told alone. */
void rp_guard_send(struct rp_guard *guard, uint64_t comm, int32_t peer);

/* ---- boundaries ---- */

/** At the begin of the receive whose prepare said `boundary`, with the streams of `idle` done. Acts:
 * activates, falls back, makes pinned buffers private. `channels` says what the tracker knows of the last
 * complete step (may be empty). After it, prepare the receive again. */
rp_status rp_guard_boundary(struct rp_guard *guard, const struct rp_guard_channel *channels, size_t count,
                            uint64_t begun_ns);
/** How long the boundary's acting took; told by the caller, who has a clock. */
void rp_guard_boundary_took(struct rp_guard *guard, uint64_t duration_ns);
/** It cannot be now (work is not done, a stream is captured): prepare answers without `boundary` until the
 * next step. */
void rp_guard_boundary_postpone(struct rp_guard *guard);

/* ---- accesses ---- */

struct rp_guard_access {
  uint64_t address, bytes; /**< bytes 0: one pointer into a buffer */
  enum rp_pool_access_mode mode;
  uint32_t kind;  /**< enum rp_event_kind */
  uint32_t place; /**< of a launch: where its parameters name the buffer, from 1; 0: not known, or twice */
  bool asked;     /**< rp_guard_access_seen: prepare was asked about it, and has counted it */
  bool stoppable; /**< rp_guard_access_seen of a shadow: enforcing would have asked before the call */
  uint64_t function;
  struct rp_order_site site;
  uint64_t seq, time_ns;
  uint64_t group; /**< a send inside an open NCCL group */
};

/** Before an interposed call. A range over several buffers is asked buffer by buffer: RP_ERROR_NOT_FOUND when
 * there is none in it; *next (may be NULL) gets where to go on, 0 at the end. */
rp_status rp_guard_access_prepare(struct rp_guard *guard, const struct rp_guard_access *access,
                                  struct rp_guard_action *action, uint64_t *next);
rp_status rp_guard_access_commit(struct rp_guard *guard, const struct rp_guard_access *access,
                                 const struct rp_guard_action *action);
/** The call has succeeded: order and evidence, for every buffer in the range. `token` is that of the call
 * (rp_order_access and the like), so that several buffers of one launch share one. True: as for a receive. */
bool rp_guard_access_launched(struct rp_guard *guard, const struct rp_guard_access *access,
                              rp_order_token token);
/** Seen in a callback: prepare, commit and launched in one, as far as nothing needs to be done. `abort` (may
 * be NULL) is set where the policy says so. True: as for a receive. */
bool rp_guard_access_seen(struct rp_guard *guard, const struct rp_guard_access *access, rp_order_token token,
                          bool *abort);
/** A graph launch: unknown accesses of every buffer that a graph holds. */
void rp_guard_graph_launched(struct rp_guard *guard, const struct rp_guard_access *access,
                             rp_order_token token);

/** While somebody acts: remembers an access that a callback saw (kind RP_EVENT_GRAPH_LAUNCH: a graph launch)
 * until rp_guard_pending_drain, which takes it as rp_guard_access_seen and rp_guard_graph_launched do (an
 * abort is then answered by the next prepare). Bounded: what does not fit makes every frontier unknown, and
 * is counted. Interposed calls that were let go before wait for the end of the acting and tell `launched`. */
void rp_guard_pending_add(struct rp_guard *guard, const struct rp_guard_access *access, rp_order_token token);
void rp_guard_pending_drain(struct rp_guard *guard);

/* ---- strict mode ---- */

/** Whether released buffers are still mapped that should not be. Cheap; false without options.strict. */
bool rp_guard_strict_pending(const struct rp_guard *guard);
/** At an interposed call that may act, at `site`: which streams would have to be idle. ACT, or GO if there is
 * nothing to do. Whether to wait for them is up to the caller. */
void rp_guard_strict_prepare(struct rp_guard *guard, const struct rp_order_site *site,
                             struct rp_guard_action *action);
/** Acts: takes the mapping of those released buffers away whose accesses the host knows to be complete; the
 * others stay pending. A receive or an interposed access gives it back (their prepare answers ACT). The first
 * failure of the backend. */
rp_status rp_guard_strict_commit(struct rp_guard *guard);

/* ---- surprises ---- */

/** The buffer at `address` is about to be registered, exported or captured (RP_POOL_FLAG_*). */
rp_status rp_guard_flag_prepare(struct rp_guard *guard, uint64_t address, uint32_t flag,
                                const struct rp_pool_site *site, struct rp_guard_action *action);
rp_status rp_guard_flag_commit(struct rp_guard *guard, uint64_t address, uint32_t flag,
                               const struct rp_pool_site *site, const struct rp_guard_action *action);
/** How many stream captures have begun in the process: asked before each allocation and receive. What was not
 * watched when one began may be held by its graph without anybody having seen it, and is left alone. */
void rp_guard_captures(struct rp_guard *guard, uint64_t begun);
/** A communicator was aborted. */
void rp_guard_interrupt(struct rp_guard *guard, const struct rp_pool_site *site);
/** Back to one allocation per buffer at the next quiescent point (kill switch, receives that nobody gates).
 */
void rp_guard_request_fallback(struct rp_guard *guard, enum rp_pool_reason reason);

/* ---- report ---- */

/** What each class holds, with names. */
struct rp_guard_class_report {
  struct rp_pool_class_info info;
  uint32_t id; /**< of the class, as conflicts and bindings name it */
  int32_t stage;
  uint32_t direction;
  uint32_t depth; /**< D; 0 for user-given slots */
  uint32_t slack;
  int32_t peer;  /**< -1: not known, or several */
  bool declined; /**< its buffers are left to the driver: rounding would take what sharing gives */
};

/** A buffer that is bound to a slot now. */
struct rp_guard_binding {
  uint64_t address;
  uint32_t class_id, slot;
};

/** All that a report says of a guard. */
struct rp_guard_report {
  bool planned, active;    /**< a plan was given; buffers share slots now */
  const char *idle_reason; /**< why nothing is shared, one word ("" while active) */
  const char *idle_text;   /**< and a sentence */
  struct rp_pool_info pool;
  struct rp_guard_class_report *classes; /**< owned by the report */
  size_t class_count;
  struct rp_guard_binding *bindings; /**< by buffer; owned by the report */
  size_t binding_count;
  struct rp_pool_last_binding
      *last_bindings; /**< of buffers that have left their slot; owned by the report */
  size_t last_binding_count;
  struct rp_pool_conflict *conflicts; /**< kept ones, oldest first; owned by the report */
  size_t conflict_count;
  uint64_t steps;                                                /**< boundaries seen */
  uint64_t activated_step, activated_ns, activation_duration_ns; /**< first activation; 0 = none */
  uint64_t activations; /**< boundaries at which buffers began to share */
  uint64_t activations_postponed;
  uint32_t slack;                /**< in use; found, where it was asked to be */
  uint64_t receives_waited;      /**< receives for which a wait was inserted */
  uint64_t waits_timed, wait_ns; /**< told by rp_guard_waited */
  uint64_t double_frees;
  uint64_t freed_forgotten; /**< freed addresses of which a second free would not be known */
  uint64_t pending_dropped;
  uint64_t evidence_merged;  /**< accesses whose functions did not fit a buffer's list, and count together */
  uint64_t unowned_receives; /**< into memory that is not the guard's */
  uint64_t rounding_peak_bytes; /**< by which sizes of what is in no class were rounded up: the most at
                                   an end of a step or now */
  uint64_t boundary_failures;   /**< boundaries at which the backend refused something */
  bool plan_departed;           /**< the run does not do what the plan lists */
  uint64_t concealed;           /**< strict: times a mapping was taken away */
  struct rp_order_counts order;
  uint64_t guard_bytes; /**< host memory, pool and tables, without the order */
};

/** RP_ERROR_NO_MEMORY leaves `out` zeroed. Free with rp_guard_report_fini. */
rp_status rp_guard_report(const struct rp_guard *guard, struct rp_guard_report *out);
void rp_guard_report_fini(struct rp_guard_report *report);
/** Time that so many inserted waits cost, of the device's streams or of the host instead. */
void rp_guard_waited(struct rp_guard *guard, uint64_t waits, uint64_t nanoseconds);
/** Violations (not prevented) so far. Cheap. */
uint64_t rp_guard_violations(const struct rp_guard *guard);
/** All invariants, pool's included. */
rp_status rp_guard_check(const struct rp_guard *guard, const char **broken);

#endif
