/* Owns what the library believes of memory: registrations, and the buffers of captured operations. NVIDIA's
 * library keeps translations for both, by address. Memory whose backing changed under it would be read or
 * written where it used to be, so that here it ends the process: a program that does it is wrong. */
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>

struct sim_snapshot {
  uint64_t begin, end;
  uint64_t block, block_begin; /* id, and the address that was its offset 0 */
  struct sim_snapshot *next;
};

struct registration {
  ncclComm_t comm;
  struct sim_snapshot *snapshot;
  struct registration *next;
};

static pthread_mutex_t registration_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registration *registrations;

/* ---- snapshots ---- */

void sim_snapshot_free(struct sim_snapshot *snapshot) {
  while (snapshot) {
    struct sim_snapshot *next = snapshot->next;
    free(snapshot);
    snapshot = next;
  }
}

struct sim_snapshot *sim_snapshot_take(const void *data, size_t bytes) {
  struct sim_snapshot *first = NULL;
  uint64_t end = (uint64_t)(uintptr_t)data + bytes;
  for (uint64_t at = (uint64_t)(uintptr_t)data; at < end;) {
    struct rpsim_backing backing;
    struct sim_snapshot *piece =
        sim_driver()->backing_of(at, &backing) == 0 ? calloc(1, sizeof *piece) : NULL;
    if (!piece) {
      sim_snapshot_free(first);
      return NULL;
    }
    *piece = (struct sim_snapshot){.begin = at,
                                   .end = backing.end < end ? backing.end : end,
                                   .block = backing.block,
                                   .block_begin = backing.begin,
                                   .next = first};
    first = piece;
    at = piece->end;
  }
  return first;
}

_Noreturn static void misuse(const char *what, uint64_t address) {
  fprintf(stderr, "rpsim: NCCL: %s at 0x%llx\n", what, (unsigned long long)address);
  abort();
}

struct range {
  uint64_t begin, end;
  bool write;
};

/* Every part of `range` that the snapshot covers still has the backing that it had. */
static void check_unchanged(const struct sim_snapshot *snapshot, const struct range *range) {
  for (; snapshot; snapshot = snapshot->next) {
    struct rpsim_backing now;
    if (snapshot->begin >= range->end || range->begin >= snapshot->end) continue;
    uint64_t at = snapshot->begin > range->begin ? snapshot->begin : range->begin;
    if (sim_driver()->backing_of(at, &now) != 0 || now.block != snapshot->block ||
        now.begin != snapshot->block_begin)
      misuse("a transfer uses registered memory whose backing has changed", at);
  }
}

/* ---- checks before a plan runs ---- */

struct ranges {
  struct range *list;
  size_t count, capacity;
};

static void add_range(const void *data, size_t bytes, bool write, void *argument) {
  struct ranges *ranges = argument;
  if (bytes == 0 || ranges->count == ranges->capacity) return;
  uint64_t begin = (uint64_t)(uintptr_t)data;
  ranges->list[ranges->count++] = (struct range){begin, begin + bytes, write};
}

/* All ranges of a plan, none without memory. The caller frees `list`. */
static struct ranges collect(const struct sim_plan *plan) {
  struct ranges ranges = {.capacity = 2 * plan->task_count};
  ranges.list = calloc(ranges.capacity ? ranges.capacity : 1, sizeof *ranges.list);
  if (!ranges.list) ranges.capacity = 0;
  sim_plan_each_range(plan, add_range, &ranges);
  return ranges;
}

/* One grid that writes memory through one address and uses it through another: neither sees the other. */
static void check_aliases(const struct range *a, const struct range *b) {
  struct sim_snapshot *left = sim_snapshot_take((const void *)(uintptr_t)a->begin, a->end - a->begin);
  struct sim_snapshot *right = sim_snapshot_take((const void *)(uintptr_t)b->begin, b->end - b->begin);
  for (const struct sim_snapshot *l = left; l; l = l->next) {
    for (const struct sim_snapshot *r = right; r; r = r->next) {
      if (l->block != r->block || l->block_begin == r->block_begin) continue;
      bool apart = l->end - l->block_begin <= r->begin - r->block_begin ||
                   r->end - r->block_begin <= l->begin - l->block_begin;
      if (!apart) misuse("one group uses the same memory through two addresses", r->begin);
    }
  }
  sim_snapshot_free(left);
  sim_snapshot_free(right);
}

void sim_memory_check(const struct sim_plan *plan) {
  struct ranges ranges = collect(plan);
  pthread_mutex_lock(&registration_lock);
  for (size_t i = 0; i < ranges.count; i++) {
    check_unchanged(plan->remembered, &ranges.list[i]);
    for (const struct registration *each = registrations; each; each = each->next)
      if (each->comm == plan->comm) check_unchanged(each->snapshot, &ranges.list[i]);
  }
  pthread_mutex_unlock(&registration_lock);
  for (size_t i = 0; i < ranges.count; i++)
    for (size_t j = 0; j < i; j++)
      if (ranges.list[i].write || ranges.list[j].write) check_aliases(&ranges.list[j], &ranges.list[i]);
  free(ranges.list);
}

static void remember_range(const void *data, size_t bytes, bool write, void *argument) {
  struct sim_plan *plan = argument;
  (void)write;
  struct sim_snapshot *snapshot = bytes ? sim_snapshot_take(data, bytes) : NULL;
  if (!snapshot) return; /* nothing there, and so nothing that could be registered */
  struct sim_snapshot *last = snapshot;
  while (last->next)
    last = last->next;
  last->next = plan->remembered;
  plan->remembered = snapshot;
}

void sim_memory_remember(struct sim_plan *plan) {
  sim_plan_each_range(plan, remember_range, plan);
}

/* ---- registration ---- */

static ncclResult_t register_buffer(ncclComm_t comm, const void *buffer, size_t bytes, void **handle) {
  if (sim_comm_check(comm, "register") != ncclSuccess || !buffer || bytes == 0 || !handle)
    return ncclInvalidArgument;
  struct registration *registration = calloc(1, sizeof *registration);
  if (!registration) return ncclSystemError;
  registration->comm = comm;
  registration->snapshot = sim_snapshot_take(buffer, bytes);
  if (!registration->snapshot) {
    free(registration);
    sim_set_error("the memory to be registered is not there");
    return ncclUnhandledCudaError;
  }
  pthread_mutex_lock(&registration_lock);
  registration->next = registrations;
  registrations = registration;
  pthread_mutex_unlock(&registration_lock);
  *handle = registration;
  return ncclSuccess;
}

static ncclResult_t deregister(ncclComm_t comm, const char *function, const void *handle) {
  ncclResult_t result = sim_comm_check(comm, function);
  if (result != ncclSuccess || !handle) return result;
  pthread_mutex_lock(&registration_lock);
  struct registration **at = &registrations;
  while (*at && (*at != handle || (*at)->comm != comm))
    at = &(*at)->next;
  struct registration *found = *at;
  if (found) *at = found->next;
  pthread_mutex_unlock(&registration_lock);
  if (!found) return ncclInvalidUsage;
  sim_snapshot_free(found->snapshot);
  free(found);
  return ncclSuccess;
}

void sim_memory_forget(ncclComm_t comm) {
  pthread_mutex_lock(&registration_lock);
  for (struct registration **at = &registrations; *at;) {
    struct registration *each = *at;
    if (each->comm != comm) {
      at = &each->next;
      continue;
    }
    *at = each->next;
    sim_snapshot_free(each->snapshot);
    free(each);
  }
  pthread_mutex_unlock(&registration_lock);
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle) {
  return register_buffer(comm, buff, size, handle);
}
SIM_PUBLIC(ncclCommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle) {
  return deregister(comm, "ncclCommDeregister", handle);
}
SIM_PUBLIC(ncclCommDeregister);

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags) {
  if (winFlags & ~NCCL_WIN_COLL_SYMMETRIC || !win) return ncclInvalidArgument;
  void *handle = NULL;
  ncclResult_t result = register_buffer(comm, buff, size, &handle);
  if (result == ncclSuccess) *win = handle;
  return result;
}
SIM_PUBLIC(ncclCommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return deregister(comm, "ncclCommWindowDeregister", win);
}
SIM_PUBLIC(ncclCommWindowDeregister);
