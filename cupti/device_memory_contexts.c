/* What is ours in each of the program's contexts: a ring of events for waits, marks, timing events, a stream
 * for single words. Owns their table and its lock, which is never held across a driver call. */
#include "cupti/device_memory_internal.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unused = PTHREAD_COND_INITIALIZER;
static struct rp__device_context *contexts[RP__DEVICE_CONTEXTS]; /* made when first needed, never freed */

void rp__device_lock(void) {
  pthread_mutex_lock(&lock);
}

void rp__device_unlock(void) {
  pthread_mutex_unlock(&lock);
}

/* ---- end of a context ---- */

/* Everything ours in `from`, moved out of the table, so that it can be given back without the lock. */
struct leftovers {
  CUevent *events;
  size_t count;
  CUstream words;
};

static size_t count_events_locked(const struct rp__device_context *from) {
  size_t count = RP__DEVICE_EVENTS + 2 * (size_t)from->timings;
  for (const struct rp__device_mark *mark = from->made_marks; mark; mark = mark->next_made)
    count++;
  return count;
}

static void add_event(struct leftovers *out, CUevent event) {
  if (event && out->events) out->events[out->count++] = event;
}

static void collect_timings_locked(struct rp__device_timing **list, struct leftovers *out) {
  while (*list) {
    struct rp__device_timing *timing = *list;
    *list = timing->next;
    add_event(out, timing->begin);
    add_event(out, timing->end);
    free(timing);
  }
}

static struct rp__device_mark *orphans; /* marks without event, free */

/* Marks in use stay with their owners, without an event; the free ones become orphans. Without host memory
 * the events are left to the driver, which frees them with the context. */
static void collect_locked(struct rp__device_context *from, struct leftovers *out) {
  *out = (struct leftovers){.words = from->words,
                            .events = calloc(count_events_locked(from), sizeof *out->events)};
  for (size_t i = 0; i < RP__DEVICE_EVENTS; i++)
    add_event(out, from->ring[i]);
  collect_timings_locked(&from->free_timings, out);
  collect_timings_locked(&from->pending_timings, out);
  for (struct rp__device_mark *mark = from->made_marks; mark; mark = mark->next_made) {
    add_event(out, mark->event);
    mark->event = NULL;
    mark->home = NULL;
  }
  while (from->free_marks) {
    struct rp__device_mark *mark = from->free_marks;
    from->free_marks = mark->next;
    mark->next = orphans;
    orphans = mark;
  }
  *from = (struct rp__device_context){0};
}

static void give_back(const struct rp__device_driver *driver, CUcontext context, struct leftovers *left,
                      bool alive) {
  bool switched = false;
  if (alive && rp__device_switch(driver, context, &switched) == RP_OK) {
    for (size_t i = 0; i < left->count && driver->event_destroy; i++)
      driver->event_destroy(left->events[i]);
    if (left->words && driver->stream_destroy) driver->stream_destroy(left->words);
    rp__device_unswitch(driver, switched);
  }
  free(left->events);
}

/* Waits until nobody uses `mine` any more and empties it. Lock held on entry and return, not in between. */
static void end_locked(const struct rp__device_driver *driver, struct rp__device_context *mine, bool alive) {
  struct leftovers left;
  CUcontext context = mine->context;
  mine->closing = true;
  while (mine->users > 0)
    pthread_cond_wait(&unused, &lock);
  collect_locked(mine, &left);
  pthread_mutex_unlock(&lock);
  give_back(driver, context, &left, alive);
  pthread_mutex_lock(&lock);
}

static struct rp__device_context *find_locked(CUcontext context) {
  for (size_t i = 0; i < RP__DEVICE_CONTEXTS; i++)
    if (contexts[i] && contexts[i]->context == context) return contexts[i];
  return NULL;
}

void rp_device_context_forget(uint64_t context, bool alive) {
  const struct rp__device_driver *driver = rp__device_driver();
  struct rp__device_scope scope;
  if (!driver || !context) return;
  if (alive) rp__device_enter(driver, &scope);
  pthread_mutex_lock(&lock);
  struct rp__device_context *mine = find_locked((CUcontext)(uintptr_t)context);
  if (mine && !mine->closing) end_locked(driver, mine, alive);
  pthread_mutex_unlock(&lock);
  if (alive) rp__device_leave(driver, &scope);
}

/* ---- use ---- */

static struct rp__device_context *free_entry_locked(void) {
  for (size_t i = 0; i < RP__DEVICE_CONTEXTS; i++) {
    if (!contexts[i]) contexts[i] = calloc(1, sizeof *contexts[i]);
    if (contexts[i] && !contexts[i]->context) return contexts[i];
  }
  return NULL;
}

/* The entry for a context with this id. One with another id is of an earlier context at the same address,
 * whose end nobody told: its handles mean nothing any more. */
static rp_status get_locked(const struct rp__device_driver *driver, CUcontext context, unsigned long long id,
                            struct rp__device_context **out) {
  struct rp__device_context *mine = find_locked(context);
  if (mine && mine->id != id && !mine->closing) {
    end_locked(driver, mine, false);
    mine = find_locked(context);
  }
  if (!mine) {
    mine = free_entry_locked();
    if (!mine) return RP_ERROR_LIMIT;
    mine->context = context;
    mine->id = id;
  }
  if (mine->closing || mine->id != id) return RP_ERROR_UNAVAILABLE;
  mine->users++;
  *out = mine;
  return RP_OK;
}

rp_status rp__device_context_get(const struct rp__device_driver *driver, CUcontext context,
                                 struct rp__device_context **out) {
  unsigned long long id = 0; /* where the driver does not tell, the program's own hooks must */
  if (driver->context_id) {
    rp_status status = RP__DEVICE_CALL(driver, context_id, context, &id);
    if (status) return status;
  }
  pthread_mutex_lock(&lock);
  rp_status status = get_locked(driver, context, id, out);
  pthread_mutex_unlock(&lock);
  return status;
}

static void put_locked(struct rp__device_context *context) {
  if (--context->users == 0) pthread_cond_broadcast(&unused);
}

void rp__device_context_put(struct rp__device_context *context) {
  pthread_mutex_lock(&lock);
  put_locked(context);
  pthread_mutex_unlock(&lock);
}

void rp__device_contexts_visit(void (*visit)(struct rp__device_context *context, void *argument),
                               void *argument) {
  for (size_t i = 0; i < RP__DEVICE_CONTEXTS; i++) {
    pthread_mutex_lock(&lock);
    struct rp__device_context *mine = contexts[i];
    bool usable = mine && mine->context && !mine->closing;
    if (usable) mine->users++;
    pthread_mutex_unlock(&lock);
    if (!usable) continue;
    visit(mine, argument);
    rp__device_context_put(mine);
  }
}

/* ---- events and the stream for words ---- */

rp_status rp__device_context_event(const struct rp__device_driver *driver, struct rp__device_context *context,
                                   CUevent *event) {
  pthread_mutex_lock(&lock);
  CUevent *mine = &context->ring[context->drawn++ % RP__DEVICE_EVENTS];
  *event = *mine;
  pthread_mutex_unlock(&lock);
  if (*event) return RP_OK;
  rp_status status = RP__DEVICE_CALL(driver, event_create, event, CU_EVENT_DISABLE_TIMING);
  if (status) return status;
  pthread_mutex_lock(&lock);
  *mine = *event;
  pthread_mutex_unlock(&lock);
  return RP_OK;
}

rp_status rp__device_words_get(const struct rp__device_driver *driver, struct rp__device_context *context,
                               CUstream *stream) {
  pthread_mutex_lock(&lock);
  bool mine = !context->words_busy;
  CUstream made = mine ? context->words : NULL;
  if (mine) context->words_busy = true;
  pthread_mutex_unlock(&lock);
  rp_status status = made ? RP_OK : RP__DEVICE_CALL(driver, stream_create, &made, CU_STREAM_NON_BLOCKING);
  pthread_mutex_lock(&lock);
  if (mine && status) context->words_busy = false;
  if (mine && status == RP_OK) context->words = made;
  pthread_mutex_unlock(&lock);
  if (status == RP_OK) *stream = made;
  return status;
}

void rp__device_words_put(const struct rp__device_driver *driver, struct rp__device_context *context,
                          CUstream stream) {
  pthread_mutex_lock(&lock);
  bool mine = stream == context->words;
  if (mine) context->words_busy = false;
  pthread_mutex_unlock(&lock);
  if (!mine && driver->stream_destroy) driver->stream_destroy(stream);
}

/* ---- marks ---- */

struct rp__device_mark *rp__device_mark_take(struct rp__device_context *home) {
  pthread_mutex_lock(&lock);
  struct rp__device_mark **from = home->free_marks ? &home->free_marks : &orphans;
  struct rp__device_mark *mark = *from;
  if (mark)
    *from = mark->next;
  else
    mark = calloc(1, sizeof *mark);
  if (mark && !mark->home) {
    mark->home = home;
    mark->next_made = home->made_marks;
    home->made_marks = mark;
  }
  pthread_mutex_unlock(&lock);
  return mark;
}

struct rp__device_context *rp__device_mark_use(struct rp__device_mark *mark) {
  pthread_mutex_lock(&lock);
  struct rp__device_context *home = mark->home;
  if (home && home->closing) home = NULL;
  if (home) home->users++;
  pthread_mutex_unlock(&lock);
  return home;
}

void rp__device_mark_put(struct rp__device_mark *mark) {
  pthread_mutex_lock(&lock);
  struct rp__device_mark **to = mark->home ? &mark->home->free_marks : &orphans;
  mark->next = *to;
  *to = mark;
  pthread_mutex_unlock(&lock);
}
