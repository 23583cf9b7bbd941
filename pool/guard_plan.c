/* What a plan says before anything was learned: which class and slot a receive goes to, and whether the
 * message that is in the slot was read for the last time. */
#include "pool/guard_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- taking a plan over ---- */

static bool plan_sane(const struct rp_guard_plan *plan) {
  if (!plan->class_count || !plan->classes) return false;
  for (uint32_t i = 0; i < plan->class_count; i++)
    if (!plan->classes[i].receive_bytes || !plan->classes[i].slots) return false;
  for (size_t i = 0; plan->receives && i < plan->receive_count; i++) {
    const struct rp_guard_planned_receive *item = &plan->receives[i];
    if (item->class_index >= plan->class_count || item->end < item->begin) return false;
    if (item->slot >= plan->classes[item->class_index].slots) return false;
  }
  return true;
}

static void copy_classes(struct rp__guard_class *to, const struct rp_guard_plan *plan) {
  for (uint32_t i = 0; i < plan->class_count; i++) {
    const struct rp_guard_planned_class *class = &plan->classes[i];
    to[i] = (struct rp__guard_class){.pool_class = RP_POOL_NONE,
                                     .label = class->label,
                                     .receive_bytes = class->receive_bytes,
                                     .stage = class->stage,
                                     .peer = -1,
                                     .direction = class->direction,
                                     .slots = class->slots,
                                     .buffers = class->buffers,
                                     .ring = true,
                                     .counted = true,
                                     .sure = true};
  }
}

/* Accesses without which the message is still in use; 0 = not known. */
static uint32_t needed_by(const struct rp_guard_planned_receive *item) {
  return item->accesses ? item->accesses : item->readers;
}

/* Does a peer send in both directions? */
static bool is_two_way(const struct rp_guard_plan *plan) {
  uint32_t *directions = calloc(plan->receive_count + 1, sizeof *directions);
  bool both = !directions; /* then nothing is promised */
  for (size_t i = 0; !both && i < plan->receive_count; i++) {
    const struct rp_guard_planned_receive *item = &plan->receives[i];
    uint32_t *seen = &directions[item->source < plan->receive_count ? item->source : plan->receive_count];
    both = *seen && *seen != item->direction + 1;
    *seen = item->direction + 1;
  }
  free(directions);
  return both;
}

/* Does the list say of any receive when it is done with? */
static bool is_evidence(const struct rp_guard_plan *plan) {
  bool some = false;
  for (size_t i = 0; plan->receives && i < plan->receive_count; i++)
    some |= needed_by(&plan->receives[i]) > 0;
  return some && !is_two_way(plan);
}

/* Which classes are rings, and how often each of their messages is read: the most of any. */
static void study_items(struct rp__guard_plan *plan) {
  for (size_t i = 0; i < plan->item_count; i++) {
    const struct rp_guard_planned_receive *item = &plan->items[i];
    struct rp__guard_class *class = &plan->templates[item->class_index];
    if (item->slot != class->received++ % class->slots) class->ring = false;
    if (needed_by(item) > class->needed) class->needed = needed_by(item);
    class->counted &= item->accesses > 0;
  }
  for (uint32_t c = 0; c < plan->template_count; c++)
    plan->templates[c].received = 0;
}

static uint32_t kind_for(struct rp__guard_plan *plan, const struct rp_guard_planned_receive *item) {
  uint32_t k = 0;
  for (; k < plan->kind_count; k++) {
    const struct rp__guard_kind *kind = &plan->kinds[k];
    if (kind->class_index == item->class_index && kind->stage == item->stage &&
        kind->direction == item->direction)
      return k;
    if (kind->class_index == item->class_index) plan->templates[item->class_index].several = true;
  }
  plan->kinds[plan->kind_count++] = (struct rp__guard_kind){
      .class_index = item->class_index, .stage = item->stage, .direction = item->direction};
  return k;
}

/* A class may be of several stages and directions, of which some read each message oftener than others. */
static rp_status study_kinds(struct rp__guard_plan *plan) {
  plan->kinds = malloc((plan->item_count + 1) * sizeof *plan->kinds);
  plan->kind_of = malloc((plan->item_count + 1) * sizeof *plan->kind_of);
  if (!plan->kinds || !plan->kind_of) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < plan->item_count; i++)
    plan->kind_of[i] = kind_for(plan, &plan->items[i]);
  return RP_OK;
}

#define SEVERAL (RP_POOL_NONE - 1)

/* K does not depend on N: rings go on where the list ends, so that a plan of fewer microbatches serves. */
static void count_freely(struct rp__guard_plan *plan) {
  for (uint32_t c = 0; c < plan->template_count; c++)
    plan->templates[c].any_number = plan->item_count && plan->templates[c].ring;
  for (size_t i = 0; i < plan->item_count; i++)
    if (plan->ring_of[plan->items[i].source] != plan->items[i].class_index)
      plan->templates[plan->items[i].class_index].any_number = false;
}

/* Class of each peer of the plan, where all of its receives go to one that is a ring. */
static rp_status study_peers(struct rp__guard_plan *plan) {
  for (size_t i = 0; i < plan->item_count; i++) {
    if (plan->items[i].source >= plan->item_count) plan->items[i].source = (uint32_t)plan->item_count;
    if (plan->items[i].source >= plan->peer_count) plan->peer_count = plan->items[i].source + 1;
  }
  plan->ring_of = malloc((plan->peer_count + (size_t)1) * sizeof *plan->ring_of);
  if (!plan->ring_of) return RP_ERROR_NO_MEMORY;
  for (uint32_t p = 0; p < plan->peer_count; p++)
    plan->ring_of[p] = RP_POOL_NONE;
  for (size_t i = 0; i < plan->item_count; i++) {
    uint32_t *ring = &plan->ring_of[plan->items[i].source], class = plan->items[i].class_index;
    if (*ring == RP_POOL_NONE && plan->templates[class].ring)
      *ring = class;
    else if (*ring != class)
      *ring = SEVERAL;
  }
  count_freely(plan);
  return RP_OK;
}

static rp_status make_class(struct rp_guard *guard, const struct rp__guard_class *template, uint32_t *index) {
  struct rp_pool_class_spec spec = {.label = template->label,
                                    .granularity = RP_PLAN_STAGE,
                                    .receive_bytes = template->receive_bytes,
                                    .slots = template->slots,
                                    .buffers = template->any_number ? 0 : template->buffers};
  struct rp__guard_class *grown =
      realloc(guard->classes, (guard->class_count + (size_t)1) * sizeof *guard->classes);
  if (!grown) return RP_ERROR_NO_MEMORY;
  guard->classes = grown;
  struct rp__guard_class *class = &grown[guard->class_count];
  *class = *template;
  rp_status status = rp_pool_plan_class(guard->pool, &spec, &class->pool_class);
  if (!status) *index = guard->class_count++;
  return status;
}

/* Now, so that the first burst of allocations finds them. */
static rp_status make_classes(struct rp_guard *guard) {
  rp_status status = RP_OK;
  uint32_t index;
  for (uint32_t i = 0; i < guard->plan.template_count && !status; i++)
    status = make_class(guard, &guard->plan.templates[i], &index);
  return status;
}

rp_status rp__guard_plan_take(struct rp_guard *guard, const struct rp_guard_plan *given) {
  struct rp__guard_plan *plan = &guard->plan;
  plan->given = true;
  if (!plan_sane(given)) {
    plan->problem = "The plan has a class without size or slots, or a receive that fits none of its classes.";
    return RP_OK;
  }
  plan->hints = !is_evidence(given);
  plan->given = !plan->hints;
  size_t count = plan->hints ? 0 : given->receive_count;
  plan->templates = calloc(given->class_count, sizeof *plan->templates);
  plan->items = calloc(count + 1, sizeof *plan->items);
  if (!plan->templates || !plan->items) return RP_ERROR_NO_MEMORY;
  plan->template_count = given->class_count;
  plan->item_count = count;
  if (count) memcpy(plan->items, given->receives, count * sizeof *plan->items);
  copy_classes(plan->templates, given);
  if (plan->hints && given->receive_count && is_two_way(given))
    for (uint32_t t = 0; t < plan->template_count; t++)
      plan->templates[t].slots = 0; /* found as without a plan: those of one class are not for the others */
  rp_status status = rp__guard_sizes_take(guard);
  if (status || plan->hints) return status;
  study_items(plan);
  status = study_kinds(plan);
  if (!status) status = study_peers(plan);
  if (status) return status;
  status = make_classes(guard);
  if (status == RP_ERROR_NO_MEMORY) return status;
  if (status == RP_ERROR_UNAVAILABLE)
    plan->problem = rp_pool_reason_text(RP_POOL_ALIAS_CHECK_FAILED);
  else if (status)
    plan->problem = "The driver or the pool does not take the plan's classes.";
  plan->usable = !status;
  return RP_OK;
}

uint32_t rp__guard_hinted_slots(const struct rp_guard *guard, uint64_t bytes) {
  uint32_t most = 0;
  for (uint32_t t = 0; guard->plan.hints && t < guard->plan.template_count; t++) {
    const struct rp__guard_class *hint = &guard->plan.templates[t];
    if (hint->receive_bytes == bytes && hint->slots > most) most = hint->slots;
  }
  return most;
}

void rp__guard_plan_fini(struct rp_guard *guard) {
  free(guard->plan.templates);
  free(guard->plan.items);
  free(guard->plan.ring_of);
  free(guard->plan.kinds);
  free(guard->plan.kind_of);
  rp__guard_sizes_fini(guard);
}

/* ---- who sends ---- */

struct rp__guard_source *rp__guard_source_of(struct rp_guard *guard, const struct rp_guard_receive *receive) {
  struct rp__guard_source *found = NULL, *oldest = NULL;
  for (uint32_t i = 0; i < guard->source_count && !found; i++) {
    struct rp__guard_source *known = &guard->sources[i];
    if (known->comm == receive->comm && known->peer == receive->peer && known->bytes == receive->bytes)
      found = known;
    if (!oldest || known->step < oldest->step) oldest = known;
  }
  if (!found) {
    found = guard->source_count < RP__GUARD_SOURCES ? &guard->sources[guard->source_count++] : oldest;
    *found = (struct rp__guard_source){.comm = receive->comm,
                                       .bytes = receive->bytes,
                                       .peer = receive->peer,
                                       .step = guard->step,
                                       .plan_peer = RP_POOL_NONE};
  }
  if (found->step != guard->step) found->received = 0;
  found->step = guard->step;
  return found;
}

/* ---- where a receive goes ---- */

/* Is the plan's peer that of the source, as far as earlier receives said? */
static bool peer_fits(const struct rp_guard *guard, const struct rp__guard_source *source, uint32_t peer) {
  if (source->plan_peer != RP_POOL_NONE) return source->plan_peer == peer;
  for (uint32_t i = 0; i < guard->source_count; i++) {
    const struct rp__guard_source *other = &guard->sources[i];
    bool same = other->comm == source->comm && other->peer == source->peer;
    if (other->plan_peer == RP_POOL_NONE) continue;
    if (same != (other->plan_peer == peer)) return false;
  }
  return true;
}

static bool item_fits(const struct rp_guard *guard, const struct rp__guard_source *source,
                      const struct rp_guard_receive *receive) {
  const struct rp__guard_plan *plan = &guard->plan;
  if (plan->position >= plan->item_count) return false;
  const struct rp_guard_planned_receive *item = &plan->items[plan->position];
  return plan->templates[item->class_index].receive_bytes == receive->bytes &&
         peer_fits(guard, source, item->source);
}

/* Class of the source when the run does something else than the list says. */
static uint32_t ring_of(const struct rp_guard *guard, const struct rp__guard_source *source,
                        const struct rp_guard_receive *receive) {
  if (source->plan_peer == RP_POOL_NONE) return RP_POOL_NONE;
  uint32_t class = guard->plan.ring_of[source->plan_peer];
  bool fits = class < guard->class_count && guard->classes[class].receive_bytes == receive->bytes;
  return fits ? class : RP_POOL_NONE;
}

static uint32_t received_in_step(const struct rp_guard *guard, const struct rp__guard_class *class) {
  return class->step == guard->step ? class->received : 0;
}

/* What is counted in a step starts again. */
static void class_step(const struct rp_guard *guard, struct rp__guard_class *class) {
  if (class->step == guard->step) return;
  class->step = guard->step;
  class->received = 0;
}

static void reading_step(const struct rp_guard *guard, struct rp__guard_reading *reading) {
  if (reading->step == guard->step) return;
  reading->step = guard->step;
  reading->most = reading->let_go = 0;
}

/* Of the messages that are read as that of `item` is; where the list does not tell, of the whole class. */
static struct rp__guard_reading *reading_of(struct rp_guard *guard, struct rp__guard_class *class,
                                            uint32_t item) {
  bool told = class->several && item != RP_POOL_NONE;
  struct rp__guard_reading *reading =
      told ? &guard->plan.kinds[guard->plan.kind_of[item]].reading : &class->reading;
  reading_step(guard, reading);
  return reading;
}

/* Allocations of the size; or only those that nothing has used. */
static uint64_t allocated_of(const struct rp_guard *guard, uint64_t receive_bytes, bool unused) {
  uint64_t sum = 0;
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    const struct rp__guard_buffer *buffer = &guard->buffers[id];
    sum += buffer->in_use && !(unused && (buffer->receives || buffer->touched_step)) &&
           rp__guard_same_pieces(guard, buffer->bytes, receive_bytes);
  }
  return sum;
}

/* At the first receive: the list is believed only where all of its buffers are there, so that no two messages
 * of a step come to one buffer, and not twice as many, which would be those of more stages than it knows. */
static bool is_as_supposed(const struct rp_guard *guard) {
  const struct rp__guard_plan *plan = &guard->plan;
  for (uint32_t t = 0; t < plan->template_count; t++) {
    uint64_t wanted = 0, bytes = plan->templates[t].receive_bytes;
    if (rp__guard_is_declined(guard, bytes)) continue; /* none of them is ours */
    for (uint32_t other = 0; other < plan->template_count; other++)
      if (rp__guard_same_pieces(guard, bytes, plan->templates[other].receive_bytes))
        wanted += plan->templates[other].buffers;
    if (!wanted) continue; /* nobody said how many */
    if (allocated_of(guard, bytes, false) < wanted) return false;
    if (allocated_of(guard, bytes, true) >= 2 * wanted) return false;
  }
  return true;
}

struct rp__guard_target rp__guard_plan_target(struct rp_guard *guard,
                                              const struct rp_guard_receive *receive) {
  struct rp__guard_target target = {RP_POOL_NONE, RP_POOL_NONE, RP_POOL_NONE};
  struct rp__guard_plan *plan = &guard->plan;
  if (!plan->usable) return target;
  if (!plan->looked) plan->unproven = !is_as_supposed(guard);
  plan->looked = true;
  if (plan->unproven) return target;
  struct rp__guard_source *source = rp__guard_source_of(guard, receive);
  if (!plan->departed && item_fits(guard, source, receive)) {
    target.item = (uint32_t)plan->position;
    target.class_index = plan->items[target.item].class_index;
    target.slot = plan->items[target.item].slot;
    return target;
  }
  target.class_index = ring_of(guard, source, receive);
  if (target.class_index == RP_POOL_NONE) return target;
  const struct rp__guard_class *class = &guard->classes[target.class_index];
  target.slot = received_in_step(guard, class) % class->slots;
  return target;
}

/* ---- the tenant before ---- */

/* Of the same step: by the positions of the list. */
static bool ended_before(const struct rp_guard *guard, const struct rp__guard_buffer *tenant, uint32_t item) {
  const struct rp_guard_planned_receive *items = guard->plan.items;
  if (tenant->item == RP_POOL_NONE) return false;
  return items[tenant->item].end < items[item].begin;
}

/* Nobody counted how often a message is read, only which parts of the schedule do it. Then it has been read
 * as often as any other of its kind so far, and where something goes back for each (design: the answering
 * send), that has been sent: the list may be of another schedule, with fewer messages in flight. */
static bool looks_done(const struct rp_guard *guard, const struct rp__guard_reading *reading,
                       const struct rp__guard_buffer *tenant) {
  if (tenant->now.total < reading->most) return false;
  bool told = guard->sizes_told || (guard->options.sends_told && !guard->sizes_untold);
  if (!reading->answered || !told) return true;
  return rp__guard_peer_sent(guard, tenant->comm, tenant->peer) > reading->let_go;
}

/* Was the message read for the last time, by what the plan says and nothing better? Never where the plan does
 * not say how often that is. */
static bool done_by_plan(struct rp_guard *guard, struct rp__guard_class *class,
                         const struct rp__guard_buffer *tenant, const struct rp__guard_target *target) {
  const struct rp_guard_planned_receive *item =
      tenant->item == RP_POOL_NONE ? NULL : &guard->plan.items[tenant->item];
  uint32_t needed = item ? needed_by(item) : class->needed;
  bool counted = item ? item->accesses > 0 : class->counted;
  if (tenant->lifetimes) return false; /* what it did before is better evidence */
  if (tenant->waiting || !needed || tenant->now.total < needed) return false;
  if (tenant->step != guard->step) return true;
  if (target->item != RP_POOL_NONE && !ended_before(guard, tenant, target->item)) return false;
  return counted || looks_done(guard, reading_of(guard, class, tenant->item), tenant);
}

static void release_tenant(struct rp_guard *guard, struct rp__guard_class *class, uint32_t slot, uint32_t id,
                           const struct rp__guard_target *target) {
  uint32_t tenant;
  if (rp_pool_slot(guard->pool, class->pool_class, slot, &tenant, NULL)) return;
  if (tenant == RP_POOL_NONE || tenant == id) return;
  if (!done_by_plan(guard, class, &guard->buffers[tenant], target)) return;
  if (rp_pool_release(guard->pool, tenant) != RP_OK) return;
  reading_of(guard, class, RP_POOL_NONE)->let_go++;
  uint32_t item = guard->buffers[tenant].item;
  if (class->several && item != RP_POOL_NONE) reading_of(guard, class, item)->let_go++;
}

void rp__guard_plan_release(struct rp_guard *guard, uint32_t id, const struct rp__guard_target *target) {
  if (target->class_index == RP_POOL_NONE) return;
  struct rp__guard_class *class = &guard->classes[target->class_index];
  struct rp_pool_buffer_info info = rp__guard_info(guard, id);
  class_step(guard, class);
  if (info.binding != RP_POOL_BOUND)
    release_tenant(guard, class, target->slot, id, target);
  else if (info.class_id == class->pool_class)
    release_tenant(guard, class, info.slot, id, target);
}

void rp__guard_plan_touched(struct rp_guard *guard, const struct rp__guard_buffer *buffer) {
  if (buffer->class_index == RP_POOL_NONE || buffer->step != guard->step) return;
  struct rp__guard_class *class = &guard->classes[buffer->class_index];
  struct rp__guard_reading *all = reading_of(guard, class, RP_POOL_NONE),
                           *alike = reading_of(guard, class, buffer->item);
  if (buffer->now.total > all->most) all->most = buffer->now.total;
  if (buffer->now.total > alike->most) alike->most = buffer->now.total;
}

/* The first time in a step that the list is left; what happens then depends on the classes. */
static void depart(struct rp_guard *guard, const struct rp__guard_target *target) {
  struct rp__guard_plan *plan = &guard->plan;
  if (plan->departed || target->item != RP_POOL_NONE) return;
  plan->departed = true;
  if (target->class_index == RP_POOL_NONE) guard->any_departed = true;
}

/* Whoever we hear from before we talk to them is before us in the pipeline, and wants an answer. The first
 * step shows it: in later ones sends come before the receive that tells that they have begun. */
static void first_heard(const struct rp_guard *guard, struct rp__guard_reading *reading,
                        const struct rp_guard_receive *receive) {
  if (!reading->received_ever++)
    reading->answered = rp__guard_peer_sent(guard, receive->comm, receive->peer) == 0;
}

void rp__guard_plan_received(struct rp_guard *guard, uint32_t id, const struct rp_guard_receive *receive,
                             const struct rp__guard_target *target) {
  struct rp__guard_plan *plan = &guard->plan;
  struct rp__guard_buffer *buffer = &guard->buffers[id];
  buffer->item = target->item;
  buffer->plan_slot = target->slot;
  buffer->class_index = RP_POOL_NONE;
  buffer->needed = 0;
  if (!plan->usable) return;
  depart(guard, target);
  if (target->class_index == RP_POOL_NONE) {
    guard->any_departed = true;
    return;
  }
  struct rp__guard_class *class = &guard->classes[target->class_index];
  class_step(guard, class);
  first_heard(guard, reading_of(guard, class, RP_POOL_NONE), receive);
  if (class->several && target->item != RP_POOL_NONE)
    first_heard(guard, reading_of(guard, class, target->item), receive);
  class->received++;
  buffer->class_index = target->class_index;
  class->peer = class->peer == -1 || class->peer == receive->peer ? receive->peer : -2;
  buffer->needed = class->needed;
  struct rp__guard_source *source = rp__guard_source_of(guard, receive);
  if (target->item == RP_POOL_NONE) return;
  buffer->needed = needed_by(&plan->items[target->item]);
  source->plan_peer = plan->items[target->item].source;
  plan->position++;
}

void rp__guard_plan_step(struct rp_guard *guard) {
  guard->plan.position = 0;
  guard->plan.departed = false;
}
