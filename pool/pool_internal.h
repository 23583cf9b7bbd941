/** @file pool_internal.h
 * What the files of the pool share:
 *
 *   pool.c           buffers, classes, allocation and the untouched-burst rule
 *   pool_memory.c    physical memory: handles, mapping, accounting
 *   pool_decide.c    what a receive, an access or a registration needs: pure
 *   pool_commit.c    doing it
 *   pool_activate.c  auto mode: the transaction, and the alias check
 *   pool_fallback.c  quiescent points: back to private memory
 *   pool_conceal.c   strict mode: mappings taken away for a while
 *   pool_headroom.c  memory kept back for buffers that share
 *   pool_last.c      slots of buffers that have left them
 *   pool_info.c      copying out
 *   pool_names.c     words and sentences
 *   pool_check.c     invariants
 */
#ifndef RP_POOL_POOL_INTERNAL_H
#define RP_POOL_POOL_INTERNAL_H

#include "pool/address_map.h"
#include "pool/pool.h"

/** One physical allocation. It lives as long as a buffer is mapped to it, or a transaction holds it. */
struct rp__memory {
  uint64_t handle, bytes;
  uint32_t references; /**< buffers mapped to it, and transactions under way */
  uint32_t class_id;   /**< whose account it is on; RP_POOL_NONE: the total only */
  uint32_t slot;       /**< slot of that class, or RP_POOL_NONE */
  bool in_use;
  bool doomed; /**< nobody needs it, but release failed: tried again */
};

struct rp__pool_buffer {
  uint64_t address, bytes, mapped_bytes;
  uint32_t memory; /**< index of what is mapped, or RP_POOL_NONE */
  uint32_t family; /**< planned size it may belong to, or RP_POOL_NONE */
  uint32_t class_id, slot;
  uint32_t flags;
  enum rp_pool_binding binding;
  enum rp_pool_life life;
  bool in_use;
  bool freed;               /**< gone for the program; the driver has not taken all of it back */
  bool touched;             /**< a receive or an access was seen */
  bool granted;             /**< by the untouched-burst rule it needs no memory before its first use */
  bool concealed;           /**< not mapped at present, though it holds memory */
  bool lost;                /**< and that since the driver refused: mapped again as soon as it can be */
  uint32_t stray;           /**< what is mapped at a lost buffer all the same and must go first, or none */
  bool pinned;              /**< keeps its slot until the next quiescent point makes it private */
  uint64_t written_turn;    /**< turn of its slot in which something may have written it; 0 = none */
  struct rp_pool_site last; /**< last post or access */
};

struct rp__pool_slot {
  uint32_t memory; /**< RP_POOL_NONE: nothing is bound to it */
  uint32_t tenant; /**< whose data is in it, or RP_POOL_NONE */
  uint64_t turn;   /**< receives into it so far */
};

struct rp__pool_class {
  struct rp_pool_class_spec spec;
  uint64_t mapped_bytes;
  uint32_t family; /**< RP_POOL_NONE for auto */
  uint32_t next_slot;
  bool sharing;
  uint32_t members; /**< buffers that are on its account */
  uint64_t grown;
  struct rp__pool_slot *slots; /**< [spec.slots] */
  struct rp_pool_account account;
};

/** Planned classes of one mapped size: at allocation nobody can tell them apart. */
struct rp__pool_family {
  uint64_t mapped_bytes, least_bytes;
  uint32_t slots;   /**< sum of K */
  uint64_t buffers; /**< sum of N; 0 = not known */
  bool sharing;
  uint32_t members;       /**< buffers of that size alive */
  uint32_t granted;       /**< of them that need no memory before their first use */
  uint32_t newest;        /**< the member allocated last, or RP_POOL_NONE */
  uint32_t untouched_run; /**< members allocated since anything last touched one of them */
};

/** Addresses whose buffer has left its slot since the last receive there. */
struct rp__pool_last {
  struct rp_pool_last_binding *ring; /**< class RP_POOL_NONE: nothing there */
  uint32_t next, capacity;           /**< capacity <= RP_POOL_LAST_BINDINGS */
  struct rp_address_map by_address;  /**< value = index in the ring */
  uint64_t dropped;
};

/** Memory kept back for buffers of one size: each has one reference, and is on no class's account. */
struct rp__headroom {
  uint64_t bytes; /**< of one */
  uint32_t *memory;
  uint32_t count, capacity;
};

struct rp_pool {
  struct rp_backend backend;
  struct rp_pool_options options;
  uint64_t granularity;
  uint64_t generation;
  bool alias_checked;
  bool refused;         /**< perhaps something is left for rp_pool_give_back */
  uint32_t lost_count;  /**< lost buffers */
  bool headroom_closed; /**< nothing is to be kept back now */
  struct rp__headroom *headroom;
  uint32_t headroom_count;
  uint32_t memory_news, memory_patience; /**< see rp_pool_memory_due; patience 0 stands for 1 */
  struct rp__pool_buffer *buffers;
  uint32_t buffer_count, buffer_capacity, buffers_free;
  struct rp__memory *memories;
  uint32_t memory_count, memory_capacity, memories_free;
  struct rp__pool_class *classes;
  uint32_t class_count;
  struct rp__pool_family *families;
  uint32_t family_count;
  struct rp_address_map addresses; /**< value = buffer */
  struct rp_pool_conflict *conflicts;
  size_t conflict_count;
  struct rp__pool_last last;
  struct rp_pool_info info; /**< the counters; the rest is filled in on copying out */
};

/** Buffer alive for the program, or NULL. */
struct rp__pool_buffer *rp__pool_get(const struct rp_pool *pool, uint32_t buffer);
/** Slot of a bound buffer. */
struct rp__pool_slot *rp__pool_slot_of(const struct rp_pool *pool, const struct rp__pool_buffer *buffer);
/** Untouched, with memory of its own, and of a planned size: may still become a slot's first tenant. */
bool rp__pool_convertible(const struct rp_pool *pool, const struct rp__pool_buffer *buffer);
/** Something touched the buffer: ends the burst of its size. */
void rp__pool_touch(struct rp_pool *pool, struct rp__pool_buffer *buffer, const struct rp_pool_site *site);
/** New class, in the place of one that nothing belongs to any more if there is one (not of a planned one);
 * RP_ERROR_NO_MEMORY. rp__pool_class_drop takes it back. */
rp_status rp__pool_class_add(struct rp_pool *pool, const struct rp_pool_class_spec *spec, uint32_t *class_id);
void rp__pool_class_drop(struct rp_pool *pool, uint32_t class_id);
rp_status rp__pool_spec_check(const struct rp_pool *pool, const struct rp_pool_class_spec *spec);
/** Where the buffer ends for those who look addresses up. */
uint64_t rp__pool_end(const struct rp_pool *pool, const struct rp__pool_buffer *buffer);
/** `bytes` rounded up to the granularity; 0 if that overflows. */
uint64_t rp__pool_round(const struct rp_pool *pool, uint64_t bytes);
void rp__pool_reason(struct rp_pool *pool, enum rp_pool_reason reason);
/** Counts and keeps a conflict; RP_POOL_NO_CONFLICT is ignored. */
void rp__pool_conflict(struct rp_pool *pool, const struct rp_pool_conflict *conflict);

/* pool_memory.c */

/** New physical memory with one reference, on the account of `class_id`. */
rp_status rp__memory_try(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory);
/** The same; where the device has none, untouched buffers give theirs up for it. */
rp_status rp__memory_press(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory);
/** The same for a buffer that the program has already; in the end what was kept back for it. */
rp_status rp__memory_create(struct rp_pool *pool, uint32_t class_id, uint64_t bytes, uint32_t *memory);
void rp__memory_hold(struct rp_pool *pool, uint32_t memory);
/** Gives a reference up; the last one releases the memory and its slot. RP_POOL_NONE is allowed. */
void rp__memory_drop(struct rp_pool *pool, uint32_t memory);
/** Moves it to the account of a class and makes it the memory of a slot there (slot may be RP_POOL_NONE). */
void rp__memory_assign(struct rp_pool *pool, uint32_t memory, uint32_t class_id, uint32_t slot);
/** Releases again what could not be released; the first failure. */
rp_status rp__memory_retry(struct rp_pool *pool);
/** Maps `memory` at the buffer in place of what is there. On success the buffer holds a reference and has
 * given up the one before. On failure all is as before, unless the driver again and again refuses to put it
 * back: then the buffer is lost, and still holds what it held. Contents are not moved. */
rp_status rp__pool_remap(struct rp_pool *pool, uint32_t buffer, uint32_t memory);
/** Takes the mapping away and gives up the reference. */
rp_status rp__pool_unmap(struct rp_pool *pool, struct rp__pool_buffer *buffer);
/** Maps what the buffer holds, which is not mapped. On failure it is concealed as before. */
rp_status rp__pool_attach(struct rp_pool *pool, uint32_t buffer);
/** Takes the mapping away and keeps the memory: the buffer is concealed. Nothing has changed on failure. */
rp_status rp__pool_detach(struct rp_pool *pool, uint32_t buffer);
/** The buffer is to show `memory`, which the driver refuses: it holds that and is lost until it is mapped. */
void rp__pool_lose(struct rp_pool *pool, uint32_t buffer, uint32_t memory);
/** Gives an unmapped buffer a binding without a slot, leaving its slot (and tenancy) if it had one. */
void rp__pool_leave_slot(struct rp_pool *pool, uint32_t buffer, enum rp_pool_binding binding);
/** Fresh private memory for the buffer; whatever it was bound to goes. */
rp_status rp__pool_make_private(struct rp_pool *pool, uint32_t buffer);
/** The same with memory that was made for it, whose reference is given up. */
rp_status rp__pool_give_private(struct rp_pool *pool, uint32_t buffer, uint32_t memory);
/** Moves the buffer to the one-to-one account of a class. */
void rp__pool_set_class(struct rp_pool *pool, struct rp__pool_buffer *buffer, uint32_t class_id);
/** The buffer comes (sign 1) or goes (-1): on the account of its class, if it has one, and on the total. */
void rp__account_buffer(struct rp_pool *pool, const struct rp__pool_buffer *buffer, int sign);
/** After peaks of the total were put back: they are no less than what is held now. */
void rp__account_settle(struct rp_pool *pool);
/** Counts the result of a backend call and returns it. */
rp_status rp__backend_result(struct rp_pool *pool, rp_status status);

/** Writes through one address and reads through the other, in both directions, and puts back what was there;
 * only compares where the contents are in use. RP_OK too where the backend has no words.
 * RP_ERROR_UNAVAILABLE: they do not agree. */
rp_status rp__alias_check(struct rp_pool *pool, uint64_t one, uint64_t other, uint64_t bytes, bool in_use);
/** The same on two scratch addresses. */
rp_status rp__alias_check_scratch(struct rp_pool *pool);

/** Remappings that can be taken back: each move holds the memory that was mapped before. */
struct rp__pool_moves {
  struct rp__pool_move {
    uint32_t buffer, before;
  } * list; /**< room for all of them */
  size_t count;
};
/** One more; on failure it is not added. */
rp_status rp__pool_move(struct rp_pool *pool, struct rp__pool_moves *moves, uint32_t buffer, uint32_t memory);
/** Takes all back, newest first. A buffer that the driver does not let go back is lost. */
void rp__pool_moves_undo(struct rp_pool *pool, struct rp__pool_moves *moves);
/** They stand: lets go of the memory before. */
void rp__pool_moves_settle(struct rp_pool *pool, struct rp__pool_moves *moves);

/* pool_headroom.c */

/** Memory that nobody refers to any more: true, it is kept, and so has one reference. */
bool rp__headroom_keep(struct rp_pool *pool, uint32_t memory);
/** Makes one more of that size if there should be one; not if the device has none. */
void rp__headroom_fill(struct rp_pool *pool, uint64_t bytes);
/** One of that size, with its reference; RP_POOL_NONE. */
uint32_t rp__headroom_use(struct rp_pool *pool, uint64_t bytes);
/** Buffers went, or share no more: gives back what is kept for nobody. */
void rp__headroom_trim(struct rp_pool *pool);
void rp__headroom_fini(struct rp_pool *pool);

/* pool_last.c */

/** The bound `buffer` leaves its slot. Without memory that is only counted. */
void rp__pool_last_note(struct rp_pool *pool, const struct rp__pool_buffer *buffer);
/** Another receive is posted there. Takes O(log n). */
void rp__pool_last_forget(struct rp_pool *pool, uint64_t address);
/** Another class takes the number. */
void rp__pool_last_forget_class(struct rp_pool *pool, uint32_t class_id);
uint64_t rp__pool_last_bytes(const struct rp_pool *pool);
void rp__pool_last_fini(struct rp_pool *pool);

/* pool.c */

/** Gives back what frees could not; the first failure. */
rp_status rp__pool_cleanup(struct rp_pool *pool);

#endif
