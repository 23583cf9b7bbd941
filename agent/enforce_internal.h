/** @file enforce_internal.h
 * Shared by enforce*.c only: the guards, the gate, and asking a guard.
 */
#ifndef RP_AGENT_ENFORCE_INTERNAL_H
#define RP_AGENT_ENFORCE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/enforce.h"
#include "cupti/device_memory.h"
#include "pool/guard.h"

/** One device. All fields under the core lock, but none changes once `guard` is set; the guard itself belongs
 * to who acts while somebody does. */
struct rp__device {
  int ordinal;
  struct rp_guard *guard;          /**< NULL: none yet, or refused */
  struct rp_device_memory *memory; /**< NULL in observe mode */
  struct rp_backend driver;        /**< of `memory`; called without the lock */
  uint64_t context;                /**< the primary one, that the buffers belong to; written while acting */
  uint64_t boundary_wait_ns;       /**< how long the next step boundary waits for the device; 0: as ever */
  bool tried;
  bool planned;       /**< the guard has a plan */
  bool unstoppable;   /**< and was told of calls that cannot be stopped */
  bool other_context; /**< a candidate was left to the driver, since its context is not the primary one */
  uint64_t waits_made, waits_timed, waits_looked_ns; /**< inserted; known how long; when looked at last */
  uint32_t restore_pauses; /**< pauses made to have what the driver took away mapped again */
  uint32_t peers;          /**< bits: devices that may read this one's memory */
  char refused[256];       /**< why not, "word: sentence" */
};

#define RP_ENFORCE_PLAN_SIZES 64

/** What is known from the start on; constant afterwards, but for `unsaid`. */
struct rp__enforce {
  struct rp_config config;
  const struct rp_guard_plan *plan;
  struct rp_order *order;
  bool shadow, unguarded;
  int world_size;    /**< of the job; -1 = not known */
  char refused[256]; /**< the whole process; set at the start */
  bool unsaid;       /**< core lock: and nobody needs to know yet, since the process may be a launcher */
  uint64_t plan_sizes[RP_ENFORCE_PLAN_SIZES]; /**< of the plan's receives, where the rank is not known */
  size_t plan_size_count;
  struct rp__device devices[RP_ENFORCE_DEVICES];
};
extern struct rp__enforce rp__enforce;

/** Under the core lock: the process turns out to be one that the plan could be for. */
void rp__say_refusal(void);
/** Under the core lock: the same, where the allocation has a size of the plan. */
void rp__note_planned_size(uint64_t bytes);

/** Under the core lock, from callbacks too; see struct rp_agent_listener. */
void rp__seen(const struct rp_work *work);
void rp__other_memory(uint64_t address, uint64_t bytes, int device);
void rp__ungated_receive(uint64_t address);

/* ---- the gate ---- */

/** Takes the core lock, and waits until nobody acts. False: this thread is inside the lock already, and can
 * do nothing here. Carries out what was asked for meanwhile. */
bool rp__gate_enter(void);
/** The same, for no longer than that. */
bool rp__gate_enter_within(uint64_t nanoseconds);
/** Gives the lock back. Ends the process where the policy has asked for it. Not from callbacks. */
void rp__gate_leave(void);
/** From inside the gate: this thread acts. It keeps the core lock, gives it up around each call of the driver
 * (rp_agent_unlock, rp_agent_lock) and leaves the guards and the order alone until it has it again. */
void rp__gate_act(void);
/** Acts no more; what came meanwhile is told to the guards. */
void rp__gate_acted(void);
/** Under the lock: somebody acts. */
bool rp__gate_acting(void);
/** Under the lock: the driver gave the range to the program by itself. The guards are told, at once or when
 * nobody acts. */
void rp__gate_address_reused(uint64_t address, uint64_t bytes);
/** Under the lock: why all guards were told to fall back, as those made later are, or RP_POOL_NO_REASON. */
enum rp_pool_reason rp__gate_fallback(void);
/** Asks for the end of the process, at the next rp__gate_leave. */
void rp__gate_want_abort(void);

/* ---- devices: inside the gate ---- */

/** The device's memory for its guard: gives the lock up around each call of the driver. */
void rp__backend(struct rp__device *device, struct rp_backend *out);

/** The plan, as long as it can be followed, else NULL. */
const struct rp_guard_plan *rp__plan(void);
/** Device with its guard, made if it is the first time (acts); NULL: none, or refused. */
struct rp__device *rp__device_get(int ordinal);
/** The device whose guard has a buffer at `address`, else NULL. */
struct rp__device *rp__device_of(uint64_t address);
/** Notes why a device, or with NULL the process, does not enforce. Kept: the first reason. */
void rp__refuse(struct rp__device *device, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Under the lock, from callbacks too: the driver is about to be given an address to free, by a call that is
 * not interposed. */
void rp__freed_elsewhere(uint64_t address);

/* ---- other processes ---- */

/** Whether an allocation of that size was exported. Takes no lock. */
bool rp__export_seen(uint64_t bytes);
/** Inside the gate: the buffer that begins there is about to be freed. */
void rp__export_end(uint64_t begin);
/** Inside the gate: all buffers of the device are. */
void rp__exports_end(const struct rp__device *device);

/** Inside the gate, from calls that may act: where something in the process uses memory by calls that cannot
 * be stopped (agent/unstoppable.h), no buffer is without. Cheap where there is no news. */
void rp__keep_backed(void);

/* ---- asking a guard ---- */

/** A receive, an access or a flag: how it is prepared and committed. */
struct rp__question {
  rp_status (*prepare)(struct rp_guard *guard, void *what, struct rp_guard_action *action);
  rp_status (*commit)(struct rp_guard *guard, void *what, const struct rp_guard_action *action);
  void *what;
  struct rp_order_site site; /**< of the call that is about to be made */
};
/** Inside the gate, which may be opened and entered again meanwhile: does all that has to be done before the
 * call. False: the call must not be made, and a warning says why. */
bool rp__ask(struct rp__device *device, const struct rp__question *question);

/** Inside the gate, as rp__ask: for every buffer of all devices in the access's range. Sets `hit` if there is
 * one. */
bool rp__ask_access(const struct rp_guard_access *access, bool *hit);

/** Inside the gate, after the call at `site`: strict mode's part, see rp_guard_strict_prepare. */
void rp__strict(const struct rp_order_site *site);

/** While acting: how long inserted waits took, as far as they are over, is told to the guard. Cheap when all
 * is known. */
void rp__note_waited(struct rp__device *device);

/** Under the lock: something was launched that the guards know of. */
void rp__note_activity(void);
uint64_t rp__activity(void);

/** Under the lock: this thread has been told to go on with a call, and has made it (or given it up). */
void rp__flight_begin(void);
void rp__flight_end(void);
/** Under the lock: another thread is between the two. */
bool rp__others_in_flight(void);

/* ---- milestones, see agent/enforce_milestones.c ---- */

/** Under the core lock. */
extern struct rp_milestone_counts rp__milestone_counts;

/** One that is being placed. number 0: none is. */
struct rp__placing {
  struct rp_order_site site;
  uint64_t context, number;
  rp_order_call call;
};
/** Inside the gate, after the order was told of a call at `site` (that has returned, but not to the program).
 */
struct rp__placing rp__milestone_begin(const struct rp_order_site *site);
/** Without the lock, before the program's call returns: records it. */
void rp__milestone_place(const struct rp__placing *placing);
/** Under the lock, from callbacks too: one is to be placed by the thread's next interposed call. */
void rp__milestone_owe(const struct rp_order_site *site, rp_order_token token);
/** Under the lock: its mark, which stays the same until it is unpinned. */
uint64_t rp__milestone_pin(uint64_t number);
void rp__milestone_unpin(uint64_t number);
/** Inside the gate: all are given back, if no memory is shared any more. */
void rp__milestones_release(void);

/** Under the lock: transfers go on of which it is not known whether NCCL has launched them. */
bool rp__transfers_go_on(void);

/** What is not known to be idle yet. */
struct rp__idle {
  rp_order_token done[4 * RP_GUARD_ACTION_WAITS]; /**< accesses that are complete */
  size_t count;
  bool host_only;    /**< the driver takes no waits between streams */
  unsigned refusals; /**< of the driver, so far */
  bool everything;   /**< the device was done with everything when `activity` was that */
  uint64_t activity;
};
/** Under the lock: are all of them complete? */
bool rp__idle_known(const struct rp__idle *idle, const struct rp_order_gap *gaps, size_t count);
/** Inside the gate, which is open while it waits for them, until then. RP_ERROR_BUSY: not in that time;
 * RP_ERROR_UNAVAILABLE: nothing can tell; RP_ERROR_STATE: and the gate could not be entered again. */
rp_status rp__idle_wait(struct rp__idle *idle, const struct rp_order_gap *gaps, size_t count,
                        uint64_t until_ns);
/** Waits for all work of a context, until then. RP_ERROR_BUSY: not in that time, or another wait that took
 * too long still goes on; else as rp_device_synchronize. */
rp_status rp__context_wait(uint64_t context, uint64_t until_ns);
/** Whether only a wait of the host closes the gap. */
bool rp__waits_for_host(const struct rp_order_gap *gap);
/** Sleeps. */
void rp__pause(uint64_t nanoseconds);
/** While acting, with the lock: lets the site's stream wait for the gaps, and tells the order. */
rp_status rp__insert_waits(const struct rp_order_site *site, const struct rp_order_gap *gaps, size_t count);

#endif
