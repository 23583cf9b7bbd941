/** @file tracker_internal.h
 * What the files of the tracker share:
 *
 *   tracker.c        events, allocations, receive buffers, lifetimes
 *   answers.c        sends that answer receives
 *   tracker_steps.c  which receives form a step, when a step is complete
 *   channels.c       a complete step's lifetimes -> channels
 *   decision.c       a channel -> poolable or why not
 *   snapshot.c       copying out, names
 */
#ifndef RP_POOL_TRACKER_INTERNAL_H
#define RP_POOL_TRACKER_INTERNAL_H

#include "pool/address_map.h"
#include "pool/answers.h"
#include "pool/labels.h"
#include "pool/tracker.h"

/** Distinct (function, argument) pairs kept per lifetime, and distinct companions; more is counted, not kept.
 */
#define RP_LIFE_SIGNATURE 16
#define RP_LIFE_COMPANIONS 24
/** Steps that may be open at once: the current one, and those whose last buffers are not received again yet.
 */
#define RP_OPEN_STEPS 4
/** From this many channels on, one that is gone makes room for a new one: communicators are re-created for
 * ever.
 */
#define RP_CHANNELS_KEPT 64
/** The same for what is known of peers. */
#define RP_PEERS_KEPT 256

/** Key of a companion: its allocation's serial, and where in the allocation it is (a caching allocator serves
 * many tensors from one allocation, and each microbatch may have an element of an array), exactly, up to
 * 256 GiB. Serials wrap at 26 bits: then two companions may be taken for one. */
#define RP_COMPANION_OFFSET_BITS 38
static inline uint64_t rp__companion_key(uint64_t serial, uint64_t offset_bytes) {
  const uint64_t most = (UINT64_C(1) << RP_COMPANION_OFFSET_BITS) - 1;
  return serial << RP_COMPANION_OFFSET_BITS | (offset_bytes < most ? offset_bytes : most);
}
static inline uint64_t rp__companion_serial(uint64_t key) {
  return key >> RP_COMPANION_OFFSET_BITS;
}

/** A small set of 64-bit keys in order of first sight. */
struct rp_key_set {
  uint16_t count;
  uint64_t key[RP_LIFE_COMPANIONS];
};

/** A lifetime while the tracker works on it. */
struct rp_life {
  struct rp_lifetime public; /**< microbatch is filled in by the channel analysis */
  uint64_t comm;
  int32_t peer, device;
  uint64_t bytes;
  uint64_t buffer_serial;     /**< which receive buffer, never used twice */
  uint64_t allocation_serial; /**< order in which the buffer's allocation was made; 0 = before attach */
  uint64_t allocation_bytes;  /**< of the allocation that contains it; 0 = not known */
  uint64_t operations;        /**< device operations begun before the receive */
  uint64_t last_operations;   /**< … and before the last access */
  uint64_t answered_ns, answered_seq; /**< the send that answers it was posted; 0: not seen */
  bool closed;
  bool freed;    /**< closed by a free of its allocation */
  bool captured; /**< its receive or an access, or one before into the same buffer, was captured into a graph
                  */
  bool sent;     /**< a send read from it */
  bool moved;    /**< the receive before into the same buffer was of another peer or communicator */
  bool ended;    /**< its communicator was destroyed */
  bool one_off;  /**< of a buffer that later steps never used */
  uint16_t signature_count;
  uint64_t signature[RP_LIFE_SIGNATURE]; /**< hash of (function, argument offset) */
  struct rp_key_set companions; /**< rp__companion_key of addresses that its accesses named beside it */
};

/** Growable array of lifetimes, in post order. */
struct rp_life_list {
  struct rp_life *lives;
  size_t count, capacity;
};

/** A receive buffer: one address range that receives land in. */
struct rp_buffer {
  uint64_t serial;
  uint64_t address, bytes;
  uint64_t allocation_begin, allocation_bytes, allocation_serial;
  uint64_t receives; /**< receives posted into it */
  uint64_t comm;     /**< … and where the last came from */
  int32_t peer;
  uint64_t last_step; /**< step of the last of them */
  bool has_open;      /**< the lifetime below is open */
  uint64_t open_step; /**< where it is: step number … */
  size_t open_index;  /**< … and index in that step's list */
  /** The accesses of its last closed lifetime: what the next one is expected to do. */
  uint32_t learned_accesses;
  uint64_t learned_function;
  bool learned;
  bool captured;  /**< a graph holds its address, for as long as the buffer exists */
  size_t channel; /**< channel of its last complete step, plus one */
  bool in_use;    /**< this slot of the buffer table is taken */
};

/** Receives of one run of the schedule. */
struct rp_step {
  uint64_t number;
  bool in_use;
  struct rp_life_list list;
  size_t open; /**< lifetimes not closed yet */
};

/** Which side of the pipeline a peer is on: by the first operation ever seen with it, or by rank. */
struct rp_peer_order {
  uint64_t comm, bytes;
  int32_t peer;
  bool receive_first;
  bool sent;    /**< something was sent to it */
  bool unclear; /**< as long as nothing goes back to it, it may be on either side */
  bool ended;   /**< its communicator was destroyed; forgotten when another one gets the handle */
};

/** What is known of a communicator. */
struct rp_comm_shape {
  uint64_t comm, ranks;
  int32_t rank; /**< own */
};

/** Communicators of which that is kept. */
#define RP_COMMS_KEPT 256

struct rp_peers {
  struct rp_peer_order *at;
  size_t count, capacity;
  uint64_t cleared;   /**< times that an unclear side became clear */
  bool rank_assumed;  /**< the stream of events begins in the middle: sides are told by rank */
  int32_t rank;       /**< where assumed */
  int32_t world_size; /**< of the job; 0 = not known */
  size_t comm_count;
  struct rp_comm_shape comms[RP_COMMS_KEPT];
};

/** A channel as it persists over steps. */
struct rp_channel_state {
  struct rp_channel public; /**< lifetimes are those of the last complete step, owned here */
  bool seen_in_last_step;
  bool gone; /**< filled in for the decision: later steps did without it, and its buffers were freed or serve
                another channel */
  bool cached; /**< filled in for the decision: buffers of this size come from a cache
                  (rp__comes_from_a_cache) */
  bool ended;  /**< its communicator was destroyed with all that the last step received over */
  bool captured;
  bool any_access;
  bool answered; /**< every receive of the last step was answered by a send */
  bool shared;
  bool all_sent;                        /**< a send read from each buffer of the last step */
  uint32_t sent_buffers, moved_buffers; /**< of the step under way */
  uint64_t cache_steps; /**< steps that look as if buffers came from a cache: sends read from some of them, or
                           from all and in the step before from none, or the other way round; or one has
                           served another peer */
  uint32_t stable_steps; /**< how many complete steps in a row had the same N and D */
};

struct rp_grouping;

/** The grouping of the step before, kept for steps that look the same. */
struct rp_grouping_cache {
  uint64_t key;     /**< hash of what grouping looks at */
  uint32_t repeats; /**< how many steps in a row had this key */
  struct rp_grouping *grouping;
};

struct rp_tracker {
  struct rp_tracker_options options;
  struct rp_tracker_sink sink;
  bool finished;
  uint64_t last_seq; /**< of the last event */

  struct rp_address_map allocations; /**< value = serial << 3 | api */
  uint64_t allocation_serial;
  uint64_t first_receive_allocation_serial; /**< allocations up to here are older than the first receive */

  struct rp_address_map ranges; /**< live receive buffers; value = index in buffers */
  struct rp_buffer *buffers;
  size_t buffer_count, buffer_capacity, buffer_free;
  uint64_t buffer_serial;

  struct rp_step steps[RP_OPEN_STEPS];
  uint64_t current_step;
  uint64_t steps_complete;
  bool any_received_again;    /**< addresses persist: steps are told by them */
  bool any_freed;             /**< buffers are freed after use: steps are told by the period */
  size_t period;              /**< receives per step once locked (just in time) */
  size_t next_period_attempt; /**< list length at which to look for the period again */
  bool phase_lost;            /**< the history does not begin with a step */
  uint64_t *template_symbols; /**< of the locked step, to notice when the pattern breaks */
  uint64_t frees_of_buffers;

  struct rp_labels labels;
  struct rp_answers answers;

  struct rp_peers peers;

  struct rp_channel_state *channels;
  size_t channel_count, channel_capacity;
  struct rp_grouping_cache cache;

  uint64_t events[RP_EVENT_KIND_COUNT];
  uint64_t events_by_source[RP_SOURCE_COUNT];
  uint64_t events_ignored, lifetimes_dropped, allocations_dropped, companions_dropped;
};

/** Takes `value` into a running hash; order matters. */
static inline uint64_t rp__mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdu; /* step of MurmurHash3's finaliser (public domain) */
  return hash ^ hash >> 29;
}

/* tracker.c */

/** The open lifetime of a receive buffer, or NULL. */
struct rp_life *rp__open_life(struct rp_tracker *tracker, struct rp_buffer *buffer);

/* peers.c */

/** A transfer with a peer is posted; a communicator is made, or ends. */
void rp__peers_note(struct rp_peers *peers, const struct rp_event *event);
void rp__peers_comm(struct rp_peers *peers, const struct rp_event *event);
void rp__peers_end(struct rp_peers *peers, uint64_t comm);
/** Whether two communicators surely have the same processes under the same numbers. */
bool rp__peers_same_members(const struct rp_peers *peers, uint64_t comm, uint64_t other);
/** What comes from that peer, where only one direction does; unknown where it cannot be told. */
enum rp_direction rp__peers_side(const struct rp_peers *peers, uint64_t comm, int32_t peer, uint64_t bytes);
void rp__peers_fini(struct rp_peers *peers);

/* tracker_steps.c */

/** The step with that number, or NULL. */
struct rp_step *rp__step_get(const struct rp_tracker *tracker, uint64_t number);
/** Adds a lifetime to step `number`, opening it (and completing what is too old to stay open). */
rp_status rp__step_add(struct rp_tracker *tracker, uint64_t number, const struct rp_life *life,
                       size_t *index);
/** Looks whether a step is complete now and hands it to the channel analysis. */
void rp__steps_advance(struct rp_tracker *tracker);
/** Everything is closed: completes what can be. */
void rp__steps_finish(struct rp_tracker *tracker);
void rp__steps_fini(struct rp_tracker *tracker);
/** Communicator `comm` was destroyed. Once that holds for all that the steps under way received over, they
 * are over, too: what their buffers are used for from then on is something else, and another communicator may
 * get the handle. */
void rp__steps_comm_end(struct rp_tracker *tracker, uint64_t comm);
/** Forgets all steps; the next receive begins the first. */
void rp__steps_restart(struct rp_tracker *tracker);
/** What a receive looks like to the step detection: channel family and device operations since the receive
 * before. */
uint64_t rp__life_symbol(const struct rp_life *life, const struct rp_life *before);
/** Step length of just-in-time receives in `list` by all evidence at hand, 0 if none. Nothing is changed. */
size_t rp__jit_period(const struct rp_life_list *list, bool final);

/* channels.c */

/** The communicators of the last step's channels were destroyed: should others get their handles, the
 * channels begin anew. */
void rp__channels_end(struct rp_tracker *tracker);

/** Whether a receive buffer of `bytes` shares its allocation, of which `serial` tells (0: not known): with
 * other receive buffers (`has_neighbour`), or with much else. One smaller than the buffer is a piece of a
 * segment that is mapped piece by piece. */
bool rp__shares_allocation(uint64_t serial, uint64_t allocation_bytes, uint64_t bytes, bool has_neighbour);

/** Assigns the lifetimes of complete step `number` to channels and updates their numbers. On
 * RP_ERROR_NO_MEMORY the step is not counted. */
rp_status rp__channels_take_step(struct rp_tracker *tracker, uint64_t number, struct rp_life *lives,
                                 size_t count, bool just_in_time);
/** Whether the last step did without channel `index`, and its buffers were freed or serve another one. */
bool rp__channel_gone(const struct rp_tracker *tracker, size_t index);
/** Forgets all channels and frees what they own. */
void rp__channels_fini(struct rp_tracker *tracker);

/* decision.c */

/** Whether the framework takes the buffers out of its cache just before each receive and gives them back
 * after use: then nothing is allocated or freed, and the same few blocks go round. */
bool rp__comes_from_a_cache(const struct rp_channel_state *channel);
/** Fills slots, reason, held, needed and would_save from the rest of the state. */
void rp__decide(struct rp_channel_state *channel, uint32_t slack);

#endif
