/** @file guard_internal.h
 * What the files of the guard share:
 *
 *   guard.c           life, memory, looking addresses up, the watch sink, double frees
 *   guard_shadow.c    the backend of memory that does not exist
 *   guard_learn.c     evidence of release: what reads a buffer, and when that has all been launched
 *   guard_plan.c      where a planned receive goes, and what the plan says of the tenant before it
 *   guard_receive.c   receives: prepare, commit, launched
 *   guard_access.c    accesses, graph launches, the pending queue, flags, strict mode
 *   guard_boundary.c  steps, and what is done between them
 *   guard_join.c      planned mode: buffers that were left out begin to share
 *   guard_activate.c  auto mode: which buffers begin to share which slots
 *   guard_report.c    copying out
 *   guard_check.c     invariants
 */
#ifndef RP_POOL_GUARD_INTERNAL_H
#define RP_POOL_GUARD_INTERNAL_H

#include "pool/guard.h"

/** Different (function, kind) pairs told apart in one lifetime; the last place takes all others together. */
#define RP__GUARD_KEYS 12
/** Peers with a size told apart; the one that was used longest ago makes room. */
#define RP__GUARD_SOURCES 256
/** Peers that sends are counted of. */
#define RP__GUARD_PEERS 256
/** Freed buffers remembered for the sake of double frees. */
#define RP__GUARD_FREED 1024
/** Accesses remembered while somebody acts. */
#define RP__GUARD_PENDING 4096

/** How often each (function, kind) touched a buffer. */
struct rp__access_set {
  uint64_t key[RP__GUARD_KEYS];
  uint32_t count[RP__GUARD_KEYS];
  uint32_t used, total;
};

/** What the tracker said of a buffer. */
struct rp__guard_place {
  uint64_t label;
  int32_t stage;
  uint32_t direction, microbatch;
  bool known;
};

/** A buffer of the pool, under the pool's id. */
struct rp__guard_buffer {
  uint64_t address, bytes;
  uint64_t birth; /**< never used twice, though the id is */
  bool in_use, watched;
  uint64_t doubted_step; /**< in which nothing that it learned counts; 0 = none */
  uint64_t touched_step; /**< of the last receive or access; 0 = none yet */
  /* The current lifetime: from its last receive on. */
  uint64_t receives; /**< so far; 0: it is no receive buffer as far as is known */
  uint64_t step;     /**< of the last receive */
  uint64_t receive_bytes, comm;
  uint64_t usual_bytes; /**< of the first receive */
  int32_t peer;
  uint32_t microbatch;        /**< counted within its source and step */
  uint32_t waiting;           /**< the receive and grouped accesses that are committed and not launched yet */
  bool partial;               /**< receives land in parts of it */
  bool unready;               /**< on the list of those whose slot could not be taken yet (slack_auto) */
  uint64_t post, last, ready; /**< guard's clock: receive; last access; last receive that found it unready */
  uint64_t first;             /**< first access; 0 = none */
  uint64_t post_before, last_before;    /**< of the lifetime before */
  uint64_t serial;                      /**< of the last change of the frontier */
  struct rp_order_frontier frontier;    /**< accesses of this lifetime, the receive among them */
  struct rp_pool_site received;         /**< the last receive */
  struct rp__access_set now;            /**< of this lifetime */
  struct rp__access_set learned;        /**< needed for release */
  uint32_t lifetimes;                   /**< that `learned` comes from */
  uint64_t first_key, first_key_before; /**< first use of the message; of the one before; 0 = not a launch */
  uint64_t reader;                      /**< that of both lifetimes before: it reads; 0 = not known */
  bool trained;                         /**< the step of this lifetime is over, and was one */
  uint32_t class_index;                 /**< plan: class of the last receive, or RP_POOL_NONE */
  uint32_t plan_slot;                   /**< plan: where it says that receive goes, or RP_POOL_NONE */
  uint32_t item, needed;                /**< plan: item of the list or RP_POOL_NONE; least accesses or 0 */
  struct rp__guard_place place;
};

/** Receives of one size from one peer. */
struct rp__guard_source {
  uint64_t comm, bytes, step;
  int32_t peer;
  uint32_t received;  /**< in step `step` */
  uint32_t plan_peer; /**< the plan's number for the peer, or RP_POOL_NONE */
};

/** What went to a peer and came from it in a step. */
struct rp__guard_peer {
  uint64_t comm;
  int32_t peer;
  uint64_t step;           /**< of the counts */
  uint32_t sends;          /**< of any size */
  uint32_t sent, received; /**< of sizes that receives have */
  uint32_t sent_before;    /**< in the step that it was last used in before */
};

/** How messages that are alike are read in a step. */
struct rp__guard_reading {
  uint64_t step;         /**< of the counts below */
  uint32_t most, let_go; /**< most accesses of one of them; released by the plan */
  uint64_t received_ever;
  bool answered; /**< each is answered by a send: its sender was heard from before it was talked to */
};

/** Planned messages of one class, stage and direction. */
struct rp__guard_kind {
  uint32_t class_index, direction;
  int32_t stage;
  struct rp__guard_reading reading;
};

/** What the guard knows of a class of the pool. */
struct rp__guard_class {
  uint32_t pool_class; /**< RP_POOL_NONE: not made */
  uint64_t label, receive_bytes;
  int32_t stage, peer;
  uint32_t direction, slots, buffers, depth, slack;
  /* Plan. */
  bool ring;       /**< the n-th receive of a step has slot n mod K */
  bool any_number; /**< more buffers than the plan counts are no surprise */
  uint32_t needed; /**< least accesses of each of its receives, by the plan; 0 = not known */
  bool counted;    /**< and exactly so many, by an earlier run */
  uint64_t step;   /**< of the count below */
  uint32_t received;
  struct rp__guard_reading reading; /**< of all its messages */
  bool several;                     /**< stages or directions, whose messages are read differently */
  bool sure; /**< auto: it was learned in a step that reads messages again after something was sent */
};

/** A size in pieces of the device, as allocations are told apart by it. */
struct rp__guard_size {
  uint64_t pieces;
  uint64_t used,
      most; /**< allocations of it that the guard has, and may have; 0: all are left to the driver */
};

struct rp__guard_plan {
  bool given, usable;                /**< a plan that can be evidence was given; the device can follow it */
  bool hints;                        /**< one that cannot: sizes and slots of `templates` only */
  bool looked, unproven;             /**< at the first receive; the buffers are not there as supposed */
  bool departed;                     /**< in this step, from the list */
  const char *problem;               /**< why it cannot be used, or NULL */
  struct rp__guard_class *templates; /**< [template_count] of the plan, without pool_class if no list */
  uint32_t template_count;
  struct rp__guard_size *sizes; /**< [size_count] that the templates have, in pieces of the device */
  uint32_t size_count;
  struct rp_guard_planned_receive *items;
  size_t item_count, position;  /**< of the next receive in this step */
  struct rp__guard_kind *kinds; /**< [kind_count] */
  uint32_t *kind_of;            /**< [item_count] */
  uint32_t kind_count;
  uint32_t *ring_of; /**< [peer_count] class of a planned peer, or RP_POOL_NONE */
  uint32_t peer_count;
};

struct rp__guard_freed {
  uint64_t address;
  uint32_t buffer;
  struct rp_pool_site received;
};

struct rp__guard_pending {
  struct rp_guard_access access;
  rp_order_token token;
};

/** A buffer, as long as it is the one that was meant. */
struct rp__guard_entry {
  uint32_t id;
  uint64_t birth;
};

/** Growable list of them. */
struct rp__guard_list {
  struct rp__guard_entry *at;
  size_t count, capacity;
  bool lost; /**< no memory for one of them */
};

/** What waits for the next boundary; bits. */
#define RP__GUARD_DUE_QUIESCENT 1u
#define RP__GUARD_DUE_ACTIVATE 2u
#define RP__GUARD_DUE_JOIN 4u

struct rp_guard {
  struct rp_guard_options options;
  struct rp_backend null_backend; /**< of a shadow */
  uint64_t shadow_address, shadow_granularity, shadow_handles;
  struct rp_order *order;
  struct rp_pool *pool;
  struct rp_guard_sink sink;
  struct rp__guard_plan plan;

  uint64_t captures;                      /**< begun so far, as told */
  struct rp__guard_buffer *buffers;       /**< by id of the pool */
  uint32_t buffer_count, buffer_capacity; /**< ids ever in use; room */
  uint64_t births;
  uint64_t births_at_free;        /**< allocations when a buffer that was received into was freed first */
  uint64_t just_in_time_receives; /**< first ones of buffers allocated after that */
  struct rp__guard_class *classes;
  uint32_t class_count;
  struct rp__guard_source sources[RP__GUARD_SOURCES];
  uint32_t source_count;
  struct rp__guard_peer peers[RP__GUARD_PEERS];
  uint32_t peer_count;
  bool sizes_told, sizes_untold; /**< sends were told with their bytes, without them */
  uint32_t graph_buffers;        /**< buffers that a graph may hold: an upper bound */

  uint64_t clock; /**< of receives, accesses and sends, in host order */
  uint64_t sent;  /**< of the last send */
  /** In this step, and in the one before, a message was read again after something was sent, as a backward
   * does and no evaluation. */
  bool read_again, read_again_before;
  uint64_t serial;  /**< of changes of frontiers */
  uint64_t context; /**< the one seen */
  bool contexts;    /**< and another one */

  /* Steps. */
  uint64_t step;
  struct rp__guard_list received, received_before; /**< in the order of their receives; of the step before */
  uint64_t pattern;                                /**< of the last step */
  uint32_t stable;                                 /**< how many steps in a row had it */
  uint64_t decided;                                /**< pattern that was decided on last; 0 = none */
  uint32_t due;
  bool postponed;      /**< a broken step could not be cleaned up: refuse once */
  uint64_t retry_step; /**< what could not be done is not tried before this step */
  uint32_t retry_distance;
  struct rp__guard_list unready; /**< slack_auto */

  bool off; /**< never activate again */
  bool abort_pending;
  const char *idle_word, *idle_text;

  struct rp__guard_freed freed[RP__GUARD_FREED];
  size_t freed_count; /**< ever; the newest are kept */
  struct rp__guard_pending *pending;
  size_t pending_count;
  bool pending_overflow;
  bool strict_pending;

  /* Counters for the report. */
  uint64_t activated_step, activated_ns, activation_duration_ns, activations, postponements;
  uint64_t receives_waited, waits_timed, wait_ns, double_frees, freed_forgotten, pending_dropped,
      evidence_merged;
  uint64_t rounded_buffers;                            /**< in use, of a rounded size */
  uint64_t rounding_peak_bytes, rounding_before_bytes; /**< at ends of steps */
  uint64_t partial_receives, unowned_receives, rounding_receives, boundary_failures, concealed;
  uint64_t mixed_receives;     /**< into allocations, none of the guard's, that hold other things too */
  char rounding_told[320];     /**< sentence for the first of rounding_receives */
  uint64_t elsewhere_receives; /**< of a size that the guard looks after, in memory that it does not */
  uint32_t slack_found;
  bool any_departed;
};

/* guard.c */

/** Buffer that the range names first, and its id; RP_ERROR_NOT_FOUND. bytes 0: one pointer. */
rp_status rp__guard_find(const struct rp_guard *guard, uint64_t address, uint64_t bytes, uint32_t *id);
/** The buffer of an entry, or NULL. */
struct rp__guard_buffer *rp__guard_entry(const struct rp_guard *guard, const struct rp__guard_entry *entry);
void rp__guard_list_add(const struct rp_guard *guard, struct rp__guard_list *list, uint32_t id);
void rp__guard_watch(struct rp_guard *guard, uint32_t id);
void rp__guard_unwatch(struct rp_guard *guard, uint32_t id);
/** Where the buffer ends for those who look addresses up. */
uint64_t rp__guard_end(const struct rp_guard *guard, uint32_t id);
/** Microbatch that a message in the buffer is called by. */
uint32_t rp__guard_microbatch(const struct rp__guard_buffer *buffer);
/** A call as one side of a conflict with the buffer. */
struct rp_pool_site rp__guard_site(const struct rp_guard *guard, uint32_t microbatch, uint32_t kind,
                                   uint64_t seq, uint64_t stream, uint64_t function);
/** Takes note of the context of a call. */
void rp__guard_context(struct rp_guard *guard, uint64_t context);
/** Adds to `action->idle` what has to be idle before the buffer may be remapped. */
void rp__guard_idle(const struct rp_guard *guard, const struct rp__guard_buffer *buffer, uint64_t context,
                    struct rp_guard_action *action);
/** One gap of the idle list is of a kind that nobody can close. */
bool rp__guard_idle_impossible(const struct rp_guard_action *action);
/** What went on with a peer, or NULL. */
const struct rp__guard_peer *rp__guard_peer_of(const struct rp_guard *guard, uint64_t comm, int32_t peer);
/** A receive of that size from the peer is posted. */
void rp__guard_peer_received(struct rp_guard *guard, uint64_t comm, int32_t peer, uint64_t bytes);
/** At the end of a step: did as many messages go to the peer as came from it, as in training? */
bool rp__guard_peer_answered(const struct rp_guard *guard, uint64_t comm, int32_t peer);
/** Messages sent to the peer in this step, over whatever communicator. */
uint32_t rp__guard_peer_sent(const struct rp_guard *guard, uint64_t comm, int32_t peer);
/** Messages were sent in the last complete step to whom nobody can tell: over communicators that have not
 * surely the members of `comm`. */
bool rp__guard_sent_elsewhere(const struct rp_guard *guard, uint64_t comm);
/** Slots that hints say for receives of that size; 0 = nothing. */
uint32_t rp__guard_hinted_slots(const struct rp_guard *guard, uint64_t bytes);
/** Writes down what a plan would do about buffers of that size, which are rounded up too much. */
void rp__guard_tell_rounding(struct rp_guard *guard, uint64_t bytes);
void rp__guard_why_idle(struct rp_guard *guard, const char *word, const char *text);

/* guard_shadow.c */

void rp__guard_null_backend(struct rp_guard *guard);

/* guard_learn.c */

/** What tells accesses apart; never 0. */
uint64_t rp__guard_key(const struct rp_guard_access *access);
bool rp__guard_is_learned(const struct rp__guard_buffer *buffer, uint64_t key);
/** Whether earlier lifetimes show that a launch like this one reads the message in the buffer. */
bool rp__guard_is_reader(const struct rp__guard_buffer *buffer, const struct rp_guard_access *access);
/** The buffer's lifetime ends and teaches. */
void rp__guard_lifetime_end(struct rp_guard *guard, uint32_t id);
/** A launched access: order and evidence. */
void rp__guard_touch(struct rp_guard *guard, uint32_t id, const struct rp_guard_access *access,
                     rp_order_token token);
void rp__guard_frontier_unknown(struct rp_guard *guard, struct rp__guard_buffer *buffer);

/* guard_sizes.c */

/** Decides which sizes of the plan's templates are taken, and takes the receives of the others off the list.
 */
rp_status rp__guard_sizes_take(struct rp_guard *guard);
void rp__guard_sizes_fini(struct rp_guard *guard);
/** Whether the plan has sizes, and none of them is taken. */
bool rp__guard_sizes_declined(const struct rp_guard *guard);
/** Whether it has this one, and does not take it. */
bool rp__guard_is_declined(const struct rp_guard *guard, uint64_t bytes);
/** One allocation of that size more or less. */
void rp__guard_size_used(struct rp_guard *guard, uint64_t bytes, int by);
/** Bytes that rounding adds, at present, to allocations that have memory and belong to no class. */
uint64_t rp__guard_rounding_bytes(const struct rp_guard *guard);
/** Keeps the most of it; apart from that before auto mode has decided what belongs to classes. */
void rp__guard_note_rounding(struct rp_guard *guard);
/** Whether rounding an allocation of that size to the granularity takes more than is worth a chance. */
bool rp__guard_rounds_much(const struct rp_guard *guard, uint64_t bytes);
/** Whether allocations of both sizes take as much of the device. */
bool rp__guard_same_pieces(const struct rp_guard *guard, uint64_t bytes, uint64_t other);
/** Auto: the user named a size, and it is neither that of the buffer's receives nor its own. */
bool rp__guard_is_other_size(const struct rp_guard *guard, const struct rp__guard_buffer *buffer);
extern const char rp__guard_wrong_size[]; /**< why nothing is shared then */
/** Could messages have it, whether or not buffers of it are taken? */
bool rp__guard_is_message_size(const struct rp_guard *guard, uint64_t bytes);

/* guard_plan.c */

rp_status rp__guard_plan_take(struct rp_guard *guard, const struct rp_guard_plan *plan);
void rp__guard_plan_fini(struct rp_guard *guard);
/** Where the plan puts a receive; RP_POOL_NONE where it does not say. */
struct rp__guard_target {
  uint32_t class_index, item, slot;
};
struct rp__guard_target rp__guard_plan_target(struct rp_guard *guard, const struct rp_guard_receive *receive);
/** Calls the tenant of the slot that the receive of buffer `id` would take released, if the plan says so and
 * nothing better is known. */
void rp__guard_plan_release(struct rp_guard *guard, uint32_t id, const struct rp__guard_target *target);
/** The receive was committed. */
void rp__guard_plan_received(struct rp_guard *guard, uint32_t id, const struct rp_guard_receive *receive,
                             const struct rp__guard_target *target);
/** It was accessed. */
void rp__guard_plan_touched(struct rp_guard *guard, const struct rp__guard_buffer *buffer);
void rp__guard_plan_step(struct rp_guard *guard);
struct rp__guard_source *rp__guard_source_of(struct rp_guard *guard, const struct rp_guard_receive *receive);

/* guard_boundary.c */

/** A buffer was received into again: the step is over. */
void rp__guard_step_end(struct rp_guard *guard);
/** What a boundary needs to be idle. */
void rp__guard_boundary_action(struct rp_guard *guard, uint64_t context, struct rp_guard_action *action);
/** What could not be done is left alone for some steps, each time for more. */
void rp__guard_retry_later(struct rp_guard *guard);

/* guard_join.c */

/** Are there buffers with memory of their own whose receives of the last step the plan has a place for? */
bool rp__guard_joinable(const struct rp_guard *guard);
/** Gives them that place. The device is done with all buffers. The first failure that may pass. */
rp_status rp__guard_join(struct rp_guard *guard);

/* guard_activate.c */

/** A step begins: buffers of messages that the program may be about to treat otherwise than what it did so
 * far was learned from are doubted in it. */
void rp__guard_doubt(struct rp_guard *guard);
/** Are there two buffers of the last step at least that could be activated, as far as can be told? */
bool rp__guard_candidates(struct rp_guard *guard);
void rp__guard_places(struct rp_guard *guard, const struct rp_guard_channel *channels, size_t count);
/** RP_OK: decided, for this pattern; RP_ERROR_BUSY: to be tried again later. `begun`: buffers share that did
 * not before. */
rp_status rp__guard_activate(struct rp_guard *guard, bool *begun);
/** A receive at `site` was posted: which slots could it not have taken yet? */
void rp__guard_note_ready(struct rp_guard *guard, const struct rp_order_site *site);

/* guard_access.c */

/** A decision as the tests' unguarded mode has it: counted, not acted on. */
void rp__guard_unguard(struct rp_guard *guard, struct rp_pool_decision *decision);
/** Gives a concealed buffer its mapping back. */
rp_status rp__guard_reveal(struct rp_guard *guard, uint32_t id);

/** Pool's view of a buffer that exists. */
struct rp_pool_buffer_info rp__guard_info(const struct rp_guard *guard, uint32_t id);

#endif
