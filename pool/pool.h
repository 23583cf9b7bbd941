/** @file pool.h
 * The pool: N buffers with addresses that never change, K slots of physical memory behind them.
 *
 *   buffer   unbound -> bound(slot) -> private        dead -> posted -> live -> released -> dead
 *   slot     free, tenant(buffer)
 *
 * It is pure: no CUDA, no file, no thread, no clock; physical memory only through `struct rp_backend`. Its
 * owner serialises all calls for one pool.
 *
 * What touches a buffer is asked in two steps. A decide function changes nothing, may be called from inside a
 * driver callback, and says what has to happen first. The caller then does what only it can do (make the
 * stream wait, see that the device is done with an address) and calls the commit function, which calls the
 * backend, counts, and moves the state; never from inside a callback unless the decision's memory action is
 * RP_POOL_MEMORY_NONE or RP_POOL_MEMORY_PIN. A decision is valid until the pool next changes.
 */
#ifndef RP_POOL_POOL_H
#define RP_POOL_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/backend.h"
#include "recvpool/plan.h"
#include "recvpool/status.h"

/** No buffer, no class, no slot. */
#define RP_POOL_NONE UINT32_MAX
#define RP_POOL_NO_CLASS (UINT32_MAX - 1) /**< of a receive: it shares with no planned class */

/** What backs a buffer. */
enum rp_pool_binding {
  RP_POOL_UNBOUND = 0, /**< address space only */
  RP_POOL_BOUND = 1,   /**< the memory of a slot of its class */
  RP_POOL_PRIVATE = 2, /**< memory of its own */
  RP_POOL_GONE = 3,    /**< freed, and the driver has not taken all of it back */
};

/** Where a buffer is between its receive and its last reader. */
enum rp_pool_life {
  RP_POOL_DEAD = 0,     /**< not received into in this step */
  RP_POOL_POSTED = 1,   /**< its receive is posted */
  RP_POOL_LIVE = 2,     /**< and something has read it */
  RP_POOL_RELEASED = 3, /**< and its last reader has been launched */
};

/** How an access uses the buffer. */
enum rp_pool_access_mode { RP_POOL_UNKNOWN_MODE = 0, RP_POOL_READ = 1, RP_POOL_WRITE = 2 };

/** Is the last access of the tenant before complete before this receive starts? */
enum rp_pool_order {
  RP_POOL_ORDER_UNKNOWN = 0, /**< no path that we can follow: counts as no */
  RP_POOL_ORDER_YES = 1,
  RP_POOL_ORDER_NO = 2,    /**< a wait would make it so */
  RP_POOL_ORDER_NEVER = 3, /**< nothing can make it so: one NCCL group, programmatic dependent launch */
};

/** What a violation, or a prevented one, was (design: guard). */
enum rp_pool_conflict_kind {
  RP_POOL_NO_CONFLICT = 0,
  RP_POOL_EARLY_REUSE,     /**< a receive wants a slot whose tenant is still in use */
  RP_POOL_UNORDERED_REUSE, /**< ... whose tenant is done, but not ordered before it */
  RP_POOL_FOREIGN_ACCESS,  /**< somebody other than the receive path touches a dead buffer */
  RP_POOL_STALE_ACCESS,    /**< somebody reads what a newer receive has overwritten */
  RP_POOL_SIZE_MISMATCH,   /**< a receive of another size or place than the class has */
  RP_POOL_ESCAPED_POINTER, /**< the address was registered or exported */
  RP_POOL_INTERRUPTED,     /**< a step was broken off with receives open */
  RP_POOL_DOUBLE_FREE,     /**< a buffer was freed again; the driver did not see it */
  RP_POOL_CONFLICT_COUNT,
  /** No conflict that is proven, and counted apart: something was given a buffer that holds none of its data,
   * and cannot be told to read it, to write it, or to leave it alone. The one would be a stale access, the
   * other a foreign one; `prevented`: it got memory of its own before, so nothing of others is overwritten.
   */
  RP_POOL_UNCLEAR_ACCESS = RP_POOL_CONFLICT_COUNT
};

/** Unclear accesses kept in full; they must not push out what is proven. */
#define RP_POOL_UNCLEAR_KEPT 16

/** Why the pool holds more memory than planned. One word and one sentence each. */
enum rp_pool_reason {
  RP_POOL_NO_REASON = 0,
  RP_POOL_SIZE_NEVER_SEEN,    /**< no class of the plan has that size */
  RP_POOL_MORE_BUFFERS,       /**< more allocations of the size than the plan counts */
  RP_POOL_MORE_IN_FLIGHT,     /**< all slots in use when a receive was posted */
  RP_POOL_FIRST_TOUCH,        /**< something other than a receive touched it first */
  RP_POOL_OTHER_CLASS,        /**< the receive is of no class that shares this size */
  RP_POOL_CONFLICT,           /**< the guard made it private; see the conflicts */
  RP_POOL_GRAPH_CAPTURED,     /**< held by a captured graph */
  RP_POOL_REGISTERED,         /**< registered with the communication library */
  RP_POOL_ESCAPED,            /**< exported to another process */
  RP_POOL_OUT_OF_MEMORY,      /**< the device had no memory for what was wanted */
  RP_POOL_BACKEND_FAILED,     /**< the driver refused a mapping */
  RP_POOL_ALIAS_CHECK_FAILED, /**< a word written through one address was not read through another */
  RP_POOL_NOTHING_TO_SHARE,   /**< too few buffers left to share a slot */
  RP_POOL_STEP_INTERRUPTED,   /**< a step was broken off */
  RP_POOL_SWITCHED_OFF,       /**< the user asked for it */
  RP_POOL_RECEIVE_NOT_GATED,  /**< a receive was seen only after it had been launched */
  RP_POOL_CALLS_UNSTOPPABLE,  /**< buffers keep memory until their first receive: see rp_pool_unstoppable */
  RP_POOL_MEMORY_SHORT,       /**< the device ran out, and untouched buffers gave memory up */
  RP_POOL_REASON_COUNT
};

/** What a stale access, or a foreign one that came too late to prevent, leads to. */
enum rp_pool_policy { RP_POOL_ON_STALE_FALLBACK = 0, RP_POOL_ON_STALE_REPORT, RP_POOL_ON_STALE_ABORT };

/** Ways in which an address gets out of our sight; bits. */
#define RP_POOL_FLAG_REGISTERED 1u /**< registered with the communication library */
#define RP_POOL_FLAG_ESCAPED 2u    /**< exported to another process */
#define RP_POOL_FLAG_GRAPH 4u      /**< named by a captured graph */

/** What a commit does to the memory behind a buffer. */
enum rp_pool_memory_action {
  RP_POOL_MEMORY_NONE = 0,
  RP_POOL_MEMORY_BIND,    /**< map `slot` at the buffer */
  RP_POOL_MEMORY_GROW,    /**< fresh private memory, because the slot is taken */
  RP_POOL_MEMORY_PRIVATE, /**< fresh private memory, because the slot cannot be shared with this use */
  RP_POOL_MEMORY_PIN,     /**< the buffer keeps its slot for itself; no call to the driver, contents stay */
};

/** One side of a conflict, as the caller knows it. */
struct rp_pool_site {
  uint32_t microbatch;
  uint32_t kind; /**< enum rp_event_kind of the call */
  uint64_t step, seq, stream, function;
};

/** A violation or a prevented one, with both sides. */
struct rp_pool_conflict {
  enum rp_pool_conflict_kind kind;
  bool prevented;
  uint32_t class_id, slot;                 /**< RP_POOL_NONE where there is none */
  uint32_t earlier_buffer, later_buffer;   /**< ids at that time */
  uint64_t earlier_address, later_address; /**< begin of the buffers */
  struct rp_pool_site earlier, later;      /**< last use of the one, and what came to the other */
};

/** What must happen before a call goes on. */
struct rp_pool_decision {
  uint64_t generation; /**< of the pool it was made for */
  uint32_t buffer;
  enum rp_pool_memory_action memory;
  uint32_t class_id, slot; /**< of BIND and PIN; else of the slot the buffer leaves */
  bool remaps;             /**< before commit, the device must be done with the buffer's address */
  bool insert_wait;        /**< make the call wait for the last access of `tenant` */
  uint32_t tenant;         /**< whose data is overwritten, or RP_POOL_NONE */
  bool fallback_first;     /**< the pool is frozen: quiesce and rp_pool_fallback before the call goes on */
  bool want_fallback;      /**< commit asks for fallback at the next quiescent point */
  bool abort;              /**< policy: end the process */
  bool reopens;            /**< the buffer had been called released too early */
  enum rp_pool_reason reason;
  struct rp_pool_conflict conflict; /**< kind RP_POOL_NO_CONFLICT where there is none */
};

/** A receive about to be posted. */
struct rp_pool_post {
  uint32_t buffer;
  uint32_t class_id;        /**< which class it belongs to, or RP_POOL_NONE: the only one of that size; or
                               RP_POOL_NO_CLASS */
  uint32_t slot_hint;       /**< the plan's slot, or RP_POOL_NONE: the next free one */
  bool capturing;           /**< into a graph */
  enum rp_pool_order order; /**< about rp_pool_receive_displaces; anything where that is nobody */
  uint64_t address, bytes;
  struct rp_pool_site site;
};

/** An access about to be made (interposed) or being made (seen in a callback). */
struct rp_pool_access {
  uint32_t buffer;
  enum rp_pool_access_mode mode;
  bool interposed; /**< something can still be done before it */
  bool learned;    /**< earlier steps did it between a receive into this buffer and its release */
  bool reads; /**< and in them it was the first use of what was received: it reads, whatever else it does */
  bool capturing;
  struct rp_pool_site site;
};

/** May the memory of an untouched buffer become a slot's, or a growing receive's? Then classes of one size
 * never hold more than their K together, but the lender is address space until it is received into. Only
 * where every touch by whatever library is told: a buffer that was touched unseen would lose its contents. */
enum rp_pool_lend {
  RP_POOL_LEND_NEVER = 0,
  RP_POOL_LEND_WHEN_SHORT, /**< where new memory cannot be had */
  RP_POOL_LEND_FIRST,      /**< for slots rather than new memory */
};

/** Options; zero fields take the default in brackets. */
struct rp_pool_options {
  enum rp_pool_policy on_stale; /**< [fallback] */
  uint32_t max_buffers;         /**< [65536] */
  enum rp_pool_lend lend;       /**< [never] */
  uint32_t max_conflicts;       /**< conflicts kept in full, oldest first; all are counted [256] */
  /** For each size of buffers that share: so much physical memory, in whole buffers, is kept back for those
   * that need some of their own when the device has no more. Made of what sharing sets free [0] */
  uint64_t headroom_bytes;
  /** The program's own allocations, which end where they end: buffers are found by their bytes, not by the
   * bytes that would be mapped. */
  bool exact_ranges;
};

/** A class: the buffers that may share slots. All have one size. */
struct rp_pool_class_spec {
  uint64_t label;                       /**< of the caller: which channel, direction ... */
  enum rp_plan_granularity granularity; /**< what the label stands for */
  uint64_t receive_bytes;               /**< of one receive */
  uint64_t mapped_bytes; /**< of one buffer (auto); 0: receive_bytes rounded up to the granularity */
  uint32_t slots;        /**< K, at least 1 */
  uint32_t buffers;      /**< N; 0 = not known */
};

/** Bytes of physical memory. One to one is what one handle per buffer would hold, requested what the program
 * asked for, without rounding to the granularity: what it would hold by itself. `saved` is what is held less
 * than that; negative where rounding takes more than sharing gives. */
struct rp_pool_account {
  uint64_t physical_bytes, physical_peak_bytes;
  uint64_t one_to_one_bytes, one_to_one_peak_bytes;
  uint64_t requested_bytes, requested_peak_bytes;
  int64_t saved_bytes, saved_peak_bytes;
};

/** A class, copied. Buffers belong to a class from their first receive (planned) or activation (auto). */
struct rp_pool_class_info {
  struct rp_pool_class_spec spec;
  bool sharing; /**< new buffers may still be bound to its slots */
  uint64_t mapped_bytes;
  uint32_t buffers, bound, private_buffers, slots_backed;
  uint64_t grown; /**< receives for which the pool grew */
  struct rp_pool_account account;
};

struct rp_pool_buffer_info {
  uint64_t address, bytes, mapped_bytes;
  enum rp_pool_binding binding;
  enum rp_pool_life life;
  uint32_t class_id, slot; /**< RP_POOL_NONE where there is none */
  bool touched, pinned;
  bool convertible; /**< untouched memory of a planned size: may still become a slot's */
  bool concealed;   /**< its mapping was taken away, the memory is still held for it */
  bool lost;        /**< and the driver would not give it back: see rp_pool_restore */
  uint32_t flags;
};

/** Slots of that many buffers are kept after they left them, the latest ones: more than a step has. */
#define RP_POOL_LAST_BINDINGS 4096

/** The slot that the last receive at an address went to, where the buffer has left it since (freed, or
 * private again). */
struct rp_pool_last_binding {
  uint64_t address;
  uint32_t class_id, slot;
};

/** All counters of a pool, copied. */
struct rp_pool_info {
  struct rp_pool_account account;
  uint32_t buffers, unbound, bound, private_buffers, lost, concealed, classes;
  uint64_t receives, accesses, waits_inserted, grown, reopened;
  uint64_t activations, fallbacks;
  uint64_t lent; /**< times an untouched buffer's memory became a slot's or another's */
  uint64_t prevented[RP_POOL_CONFLICT_COUNT], violated[RP_POOL_CONFLICT_COUNT];
  uint64_t unclear, unclear_late;         /**< unclear accesses; those that nothing could be done before */
  uint64_t reasons[RP_POOL_REASON_COUNT]; /**< how often each applied */
  uint64_t last_bindings_dropped;         /**< slots of freed buffers that are no longer known */
  bool frozen, fallback_pending, pins_pending, cleanup_pending;
  uint64_t headroom_bytes; /**< kept back now; held, and so among the physical bytes */
  uint64_t headroom_peak_bytes;
  uint64_t headroom_used; /**< times a buffer was given of it */
  bool unstoppable;       /**< rp_pool_unstoppable was called */
  bool memory_short;      /**< and since then there was not enough for all */
  uint64_t backend_calls, backend_failures;
};

struct rp_pool;

/** New pool over `backend`, which is copied and must outlive it. RP_ERROR_VERSION, RP_ERROR_INVALID (a
 * missing function), RP_ERROR_NO_MEMORY, or what granularity() returned. `options` may be NULL. */
rp_status rp_pool_create(const struct rp_backend *backend, const struct rp_pool_options *options,
                         struct rp_pool **out);
/** Gives everything back and frees the pool; NULL is allowed. The device must be done with all buffers. What
 * the driver would not take back is in `left_bytes` (may be NULL), with the first reason returned. */
rp_status rp_pool_destroy(struct rp_pool *pool, uint64_t *left_bytes);

/* Planned */

/** Announces a class before its buffers are allocated. Checks aliasing on two scratch addresses first: if
 * that fails, RP_ERROR_UNAVAILABLE. RP_ERROR_INVALID, RP_ERROR_NO_MEMORY. */
rp_status rp_pool_plan_class(struct rp_pool *pool, const struct rp_pool_class_spec *spec, uint32_t *class_id);

/** Device memory of `bytes`: address space only where a planned class and the untouched-burst rule allow it,
 * else with memory of its own. Fails as an allocation does, and then nothing has changed but that other
 * untouched buffers may have given up theirs (rp_pool_memory_short). `buffer` gets the id, `address` the
 * begin. */
rp_status rp_pool_allocate(struct rp_pool *pool, uint64_t bytes, uint32_t *buffer, uint64_t *address);
/** Frees the buffer that begins at `address`; the device must be done with it. RP_ERROR_NOT_FOUND: no such
 * buffer, or freed already. Any other failure: the buffer is gone all the same, what the driver did not take
 * back is kept and tried again at the next quiescent point. */
rp_status rp_pool_free(struct rp_pool *pool, uint64_t address);
/** Asks the driver again to take back what it refused to take back of freed buffers, until it refuses again.
 * Nothing else has to be idle. Cheap when there is nothing. */
rp_status rp_pool_give_back(struct rp_pool *pool);
/** Maps again what the driver would not map at a buffer when something was moved: until then nothing is
 * mapped there (or what should not be), and the contents are kept. RP_OK where nothing is missing, which is
 * cheap; else the first failure. Nothing has to be idle. A receive or an access of such a buffer tries it,
 * too, and so does a quiescent point. */
rp_status rp_pool_restore(struct rp_pool *pool);
/** Whether there is such a buffer. Cheap. */
bool rp_pool_lost(const struct rp_pool *pool);

/** Something in the process uses memory by calls that can be seen but not stopped, so it could be the first
 * to use a buffer without memory, and the program would end. From now on a buffer has memory from its
 * allocation until its first receive, and those without get some; sharing begins buffer by buffer in the
 * first step. As long as the device has enough: RP_ERROR_NO_MEMORY, or what the backend said, if some stay
 * without. For good; cheap when called again with nothing to do: where rp_pool_memory_due says so, those
 * without are tried again. */
rp_status rp_pool_unstoppable(struct rp_pool *pool);
/** The device has no memory for something that the program wants. Buffers that the untouched-burst rule would
 * have left without memory give up what they got by rp_pool_unstoppable, and later ones get none: without the
 * pool, the program would have had no memory here either. Until rp_pool_unstoppable finds that there is
 * enough again. Answers how many bytes were given back. */
uint64_t rp_pool_memory_short(struct rp_pool *pool);
/** Somebody has given memory of the device back, so there may be enough again. Steps that end and frees of
 * this pool count without being told. Cheap. */
void rp_pool_memory_news(struct rp_pool *pool);
/** Memory was short, and there has been news since: once after the first shortage, and after each try in vain
 * not before twice as much, up to 64. Cheap. */
bool rp_pool_memory_due(const struct rp_pool *pool);

/** A buffer that has memory of its own, though it is received into by the plan, shares the memory of a slot
 * from now on; its own is given back, or becomes the slot's. Call with the device done with it, between
 * steps: its contents are lost. RP_ERROR_STATE: it is in use, or shares, or has left our sight, or is of
 * another size, or the class shares no more; RP_ERROR_BUSY: frozen, or about to fall back; otherwise what the
 * backend said. */
rp_status rp_pool_join(struct rp_pool *pool, uint32_t buffer, uint32_t class_id, uint32_t slot);

/* Auto */

/** Makes a class of buffers that have memory of their own: buffers[i] goes to slot[i] (below spec->slots).
 * A transaction: on failure all is as it was. Call with the device done with all of them, between steps.
 * RP_ERROR_BUSY: capturing, or two of one slot are in use: try at a later boundary. RP_ERROR_STATE: nothing
 * left to share when what is registered, exported or in a graph is left alone. RP_ERROR_UNAVAILABLE: the
 * aliases do not show each other's writes. RP_ERROR_INVALID, RP_ERROR_NO_MEMORY, or what the backend said. */
rp_status rp_pool_activate(struct rp_pool *pool, const struct rp_pool_class_spec *spec,
                           const uint32_t *buffers, const uint32_t *slot, size_t count, bool capturing,
                           uint32_t *class_id);

/* Guard */

/** Whose released data the receive would overwrite: the caller answers post->order about that buffer's last
 * accesses, its receive among them. RP_POOL_NONE: nobody's. RP_ERROR_NOT_FOUND: no such buffer. */
rp_status rp_pool_receive_displaces(const struct rp_pool *pool, const struct rp_pool_post *post,
                                    uint32_t *tenant);
/** What a receive needs. RP_ERROR_NOT_FOUND. */
rp_status rp_pool_receive_decide(const struct rp_pool *pool, const struct rp_pool_post *post,
                                 struct rp_pool_decision *out);
/** Does it, and the buffer is posted. RP_ERROR_STATE: the decision is out of date. RP_ERROR_BUSY: frozen,
 * fall back first. Otherwise what the backend said: nothing is counted, and the receive must not go on, for
 * it would overwrite somebody's data. Where the memory for a slot cannot be had but private memory can, the
 * receive gets that and a reason is counted. */
rp_status rp_pool_receive_commit(struct rp_pool *pool, const struct rp_pool_post *post,
                                 const struct rp_pool_decision *decision);
/** What an access needs. */
rp_status rp_pool_access_decide(const struct rp_pool *pool, const struct rp_pool_access *access,
                                struct rp_pool_decision *out);
/** Does it. Like rp_pool_receive_commit on failure. */
rp_status rp_pool_access_commit(struct rp_pool *pool, const struct rp_pool_access *access,
                                const struct rp_pool_decision *decision);
/** What must happen before the buffer is registered or exported (one RP_POOL_FLAG_*). */
rp_status rp_pool_flag_decide(const struct rp_pool *pool, uint32_t buffer, uint32_t flag, bool interposed,
                              const struct rp_pool_site *site, struct rp_pool_decision *out);
rp_status rp_pool_flag_commit(struct rp_pool *pool, uint32_t flag, const struct rp_pool_site *site,
                              const struct rp_pool_decision *decision);
/** The last reader of what the buffer received has been launched. RP_ERROR_STATE unless posted or live. */
rp_status rp_pool_release(struct rp_pool *pool, uint32_t buffer);
/** A step ends: what was released is dead. */
void rp_pool_step_end(struct rp_pool *pool);
/** A step was broken off: frozen until the next rp_pool_fallback. */
void rp_pool_interrupt(struct rp_pool *pool, const struct rp_pool_site *site);

/* Quiescent points: the device is done with every buffer. */

/** Asks for fallback at the next quiescent point, and why. */
void rp_pool_request_fallback(struct rp_pool *pool, enum rp_pool_reason reason);
/** Makes every buffer private: one handle each, as without the pool; what is in use keeps its contents. If
 * the device has not enough memory, as many as possible, and RP_ERROR_NO_MEMORY: the rest go on sharing,
 * guarded. Classes stop sharing for good. RP_ERROR_BUSY: capturing. */
rp_status rp_pool_fallback(struct rp_pool *pool, bool capturing);
/** Does what was put off: a fallback asked for, pinned buffers made private, memory the driver refused to
 * take back. RP_ERROR_BUSY: capturing. Otherwise the first failure; what failed stays pending. */
rp_status rp_pool_quiescent(struct rp_pool *pool, bool capturing);

/* Strict */

/** Takes the mapping of a bound buffer away whose data is released or dead, so that whoever uses the address
 * faults; its memory stays. The device is done with the address. RP_ERROR_NOT_FOUND; RP_ERROR_STATE: not
 * bound, in use, pinned, or out of our sight; otherwise what the backend said. */
rp_status rp_pool_conceal(struct rp_pool *pool, uint32_t buffer);
/** Gives it back; RP_OK too for a buffer that is not concealed. To be called before a receive or an access of
 * a concealed buffer is committed. On failure the buffer stays concealed. */
rp_status rp_pool_reveal(struct rp_pool *pool, uint32_t buffer);

/* Looking */

/** Buffer that contains `address`; RP_ERROR_NOT_FOUND. */
rp_status rp_pool_find(const struct rp_pool *pool, uint64_t address, uint32_t *buffer);
/** First buffer that overlaps [begin, end); RP_ERROR_NOT_FOUND. */
rp_status rp_pool_find_range(const struct rp_pool *pool, uint64_t begin, uint64_t end, uint32_t *buffer);
/** Counts and keeps a conflict that the caller found. */
void rp_pool_note_conflict(struct rp_pool *pool, const struct rp_pool_conflict *conflict);
/** Host memory held, in bytes. */
uint64_t rp_pool_bytes(const struct rp_pool *pool);
/** Unit of the backend's handles in bytes. */
uint64_t rp_pool_granularity(const struct rp_pool *pool);
/** A step was broken off; a fallback was asked for: rp_pool_quiescent has work. Cheap. */
bool rp_pool_frozen(const struct rp_pool *pool);
bool rp_pool_fallback_pending(const struct rp_pool *pool);
/** Conflicts that were not prevented. Cheap. */
uint64_t rp_pool_violations(const struct rp_pool *pool);
rp_status rp_pool_buffer(const struct rp_pool *pool, uint32_t buffer, struct rp_pool_buffer_info *out);
rp_status rp_pool_class(const struct rp_pool *pool, uint32_t class_id, struct rp_pool_class_info *out);
/** Tenant of a slot (RP_POOL_NONE: free) and whether physical memory is behind it; either may be NULL. */
rp_status rp_pool_slot(const struct rp_pool *pool, uint32_t class_id, uint32_t slot, uint32_t *tenant,
                       bool *backed);
void rp_pool_info(const struct rp_pool *pool, struct rp_pool_info *out);
/** The conflicts kept, oldest first; valid until the pool changes. */
const struct rp_pool_conflict *rp_pool_conflicts(const struct rp_pool *pool, size_t *count);
/** Slots that buffers have left, in no order; returns how many. `out` has room for RP_POOL_LAST_BINDINGS, or
 * is NULL. What is bound now comes before them. */
size_t rp_pool_last_bindings(const struct rp_pool *pool, struct rp_pool_last_binding *out);
/** Walks everything and compares with what is kept. RP_ERROR_INTERNAL: `broken` (may be NULL) names the
 * invariant that does not hold. O(buffers). */
rp_status rp_pool_check(const struct rp_pool *pool, const char **broken);

/** Fixed lower-case words for JSON, and a sentence a user can act on; never NULL. */
const char *rp_pool_binding_name(enum rp_pool_binding binding);
const char *rp_pool_life_name(enum rp_pool_life life);
const char *rp_pool_conflict_name(enum rp_pool_conflict_kind kind);
const char *rp_pool_reason_name(enum rp_pool_reason reason);
const char *rp_pool_reason_text(enum rp_pool_reason reason);

#endif
