/* The part of the report that says what enforcing did, or in observe mode would have done. Bytes saved come
 * from the pool's own account of memory created and given back, never from arithmetic on sizes. */
#include "agent/report_enforce.h"

#include <stdio.h>
#include <string.h>

/* "word: sentence" as an object; null for "". What has no word gets "refused". */
static void put_refused(struct rp__emit *emit, const char *key, const char *refused) {
  if (!refused[0]) {
    rp__put(emit, key, json_null());
    return;
  }
  size_t length = strspn(refused, "abcdefghijklmnopqrstuvwxyz_");
  bool worded = length && strncmp(refused + length, ": ", 2) == 0;
  char word[64];
  snprintf(word, sizeof word, "%.*s", worded ? (int)length : (int)sizeof word, worded ? refused : "refused");
  struct rp__emit object = rp__emit_begin(emit->failed);
  rp__put_text(&object, "reason", word);
  rp__put_text(&object, "text", worded ? refused + length + 2 : refused);
  rp__put(emit, key, object.object);
}

/* What to put after every moment: since attach, as in lifetimes. */
static void put_moment(struct rp__emit *emit, const struct rp_report *report, const char *name,
                       uint64_t time_ns) {
  char key[64];
  snprintf(key, sizeof key, "%s_monotonic_ns", name);
  rp__put_u64_or_null(emit, key, time_ns);
  snprintf(key, sizeof key, "%s_seconds", name);
  if (time_ns)
    rp__put_real(emit, key, (double)(int64_t)(time_ns - report->process.start_monotonic_ns) / 1e9);
  else
    rp__put(emit, key, json_null());
}

/* A shadow's memory does not exist: nothing was measured. */
static void put_account(struct rp__emit *emit, const struct rp_pool_account *account, bool measured) {
  const struct {
    const char *key;
    int64_t bytes;
  } rows[] = {
      {"physical_bytes", (int64_t)account->physical_bytes},
      {"physical_peak_bytes", (int64_t)account->physical_peak_bytes},
      {"one_to_one_bytes", (int64_t)account->one_to_one_bytes},
      {"one_to_one_peak_bytes", (int64_t)account->one_to_one_peak_bytes},
      {"requested_bytes", (int64_t)account->requested_bytes},
      {"requested_peak_bytes", (int64_t)account->requested_peak_bytes},
      {"saved_bytes", account->saved_bytes},
      {"saved_peak_bytes", account->saved_peak_bytes},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    rp__put(emit, rows[i].key, measured ? json_integer(rows[i].bytes) : json_null());
}

static void put_rounding(struct rp__emit *emit, uint64_t bytes, bool measured) {
  rp__put(emit, "rounding_peak_bytes", measured ? json_integer((json_int_t)bytes) : json_null());
}

static json_t *binding_json(uint64_t address, uint32_t slot, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_hex(&emit, "address", address);
  rp__put_u64(&emit, "slot", slot);
  return emit.object;
}

/* The buffers of a class that are bound to its slots. */
static json_t *bindings_json(const struct rp_guard_report *guard, uint32_t id, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < guard->binding_count; i++) {
    const struct rp_guard_binding *binding = &guard->bindings[i];
    if (binding->class_id != id) continue;
    rp__append(array, binding_json(binding->address, binding->slot, failed), failed);
  }
  return array;
}

/* The buffers that have left a slot of the class: the last picture of a run whose buffers are freed. */
static json_t *last_bindings_json(const struct rp_guard_report *guard, uint32_t id, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < guard->last_binding_count; i++)
    if (guard->last_bindings[i].class_id == id)
      rp__append(array, binding_json(guard->last_bindings[i].address, guard->last_bindings[i].slot, failed),
                 failed);
  return array;
}

/* Most buffers that the class had at once, as seen. */
static uint64_t buffers_of(const struct rp_pool_class_info *info) {
  return info->mapped_bytes ? info->account.one_to_one_peak_bytes / info->mapped_bytes : 0;
}

/* Of K slots, or of as many as there were buffers for. */
static uint64_t minimum_bytes(const struct rp_pool_class_info *info) {
  uint64_t buffers = buffers_of(info);
  return (buffers < info->spec.slots ? buffers : info->spec.slots) * info->mapped_bytes;
}

static json_t *class_json(const struct rp_guard_report *guard, const struct rp_guard_class_report *class,
                          bool measured, bool *failed) {
  const struct rp_pool_class_info *info = &class->info;
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "class", class->id);
  rp__put_hex(&emit, "label", info->spec.label);
  rp__put_int_or_null(&emit, "stage", class->stage);
  rp__put_text(&emit, "direction", rp_direction_name((enum rp_direction) class->direction));
  rp__put_int_or_null(&emit, "peer", class->peer);
  rp__put_u64(&emit, "receive_bytes", info->spec.receive_bytes);
  rp__put_u64(&emit, "mapped_bytes", info->mapped_bytes);
  rp__put_u64(&emit, "buffers", buffers_of(info));
  rp__put_u64_or_null(&emit, "buffers_planned", info->spec.buffers);
  rp__put_u64_or_null(&emit, "depth", class->depth);
  rp__put_u64(&emit, "slots", info->spec.slots);
  rp__put_u64(&emit, "slack_slots", class->slack);
  rp__put_bool(&emit, "sharing", info->sharing);
  rp__put_bool(&emit, "left_to_driver", class->declined);
  rp__put_u64(&emit, "buffers_now", info->buffers);
  rp__put_u64(&emit, "buffers_bound", info->bound);
  rp__put_u64(&emit, "buffers_private", info->private_buffers);
  rp__put_u64(&emit, "slots_backed", info->slots_backed);
  rp__put_u64(&emit, "grown", info->grown);
  rp__put_u64(&emit, "minimum_bytes", minimum_bytes(info));
  put_account(&emit, &info->account, measured);
  rp__put(&emit, "bindings", measured ? bindings_json(guard, class->id, failed) : json_array());
  rp__put(&emit, "last_bindings", measured ? last_bindings_json(guard, class->id, failed) : json_array());
  return emit.object;
}

static json_t *classes_json(const struct rp_guard_report *guard, bool measured, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < guard->class_count; i++)
    rp__append(array, class_json(guard, &guard->classes[i], measured, failed), failed);
  return array;
}

/* ---- conflicts ---- */

static json_t *counts_json(const uint64_t *counts, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  for (int kind = RP_POOL_NO_CONFLICT + 1; kind < RP_POOL_CONFLICT_COUNT; kind++)
    rp__put_u64(&emit, rp_pool_conflict_name((enum rp_pool_conflict_kind)kind), counts[kind]);
  return emit.object;
}

static void put_id_or_null(struct rp__emit *emit, const char *key, uint32_t id) {
  rp__put(emit, key, id == RP_POOL_NONE ? json_null() : json_integer(id));
}

static json_t *side_json(const struct rp_report *report, const struct rp_pool_site *site, uint32_t buffer,
                         uint64_t address, bool *failed) {
  const char *name = site->function && report->function_name
                         ? report->function_name(report->function_name_context, site->function)
                         : NULL;
  struct rp__emit emit = rp__emit_begin(failed);
  put_id_or_null(&emit, "buffer", buffer);
  rp__put_hex_or_null(&emit, "address", address);
  put_id_or_null(&emit, "microbatch", site->microbatch);
  rp__put_u64(&emit, "step", site->step);
  rp__put_hex(&emit, "stream", site->stream);
  rp__put_text(&emit, "call", rp_event_kind_name((enum rp_event_kind)site->kind));
  rp__put_text_or_null(&emit, "function", name);
  rp__put_u64_or_null(&emit, "sequence", site->seq);
  return emit.object;
}

static json_t *conflict_json(const struct rp_report *report, const struct rp_pool_conflict *conflict,
                             bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_text(&emit, "kind", rp_pool_conflict_name(conflict->kind));
  rp__put_bool(&emit, "prevented", conflict->prevented);
  put_id_or_null(&emit, "class", conflict->class_id);
  put_id_or_null(&emit, "slot", conflict->slot);
  rp__put(&emit, "earlier",
          side_json(report, &conflict->earlier, conflict->earlier_buffer, conflict->earlier_address, failed));
  rp__put(&emit, "later",
          side_json(report, &conflict->later, conflict->later_buffer, conflict->later_address, failed));
  return emit.object;
}

/* Uses that cannot be told to be conflicts. */
static json_t *unclear_json(const struct rp_report *report, const struct rp_guard_report *guard,
                            bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  json_t *kept = json_array();
  for (size_t i = 0; i < guard->conflict_count; i++)
    if (guard->conflicts[i].kind == RP_POOL_UNCLEAR_ACCESS)
      rp__append(kept, conflict_json(report, &guard->conflicts[i], failed), failed);
  rp__put_u64(&emit, "count", guard->pool.unclear);
  rp__put_u64(&emit, "too_late", guard->pool.unclear_late);
  rp__put(&emit, "kept", kept);
  return emit.object;
}

static uint64_t sum_conflicts(const uint64_t *counts) {
  uint64_t sum = 0;
  for (int kind = RP_POOL_NO_CONFLICT + 1; kind < RP_POOL_CONFLICT_COUNT; kind++)
    sum += counts[kind];
  return sum;
}

static json_t *conflicts_json(const struct rp_report *report, const struct rp_guard_report *guard,
                              bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  uint64_t all = sum_conflicts(guard->pool.prevented) + sum_conflicts(guard->pool.violated);
  json_t *kept = json_array();
  size_t proven = 0;
  for (size_t i = 0; i < guard->conflict_count; i++) {
    if (guard->conflicts[i].kind == RP_POOL_UNCLEAR_ACCESS) continue;
    rp__append(kept, conflict_json(report, &guard->conflicts[i], failed), failed);
    proven++;
  }
  rp__put(&emit, "prevented", counts_json(guard->pool.prevented, failed));
  rp__put(&emit, "violated", counts_json(guard->pool.violated, failed));
  rp__put_u64(&emit, "double_frees", guard->double_frees);
  rp__put(&emit, "kept", kept);
  rp__put_u64(&emit, "kept_dropped", all > proven ? all - proven : 0);
  rp__put(&emit, "unclear", unclear_json(report, guard, failed));
  return emit.object;
}

/* ---- one device ---- */

static json_t *reasons_json(const struct rp_pool_info *pool, bool *failed) {
  json_t *array = json_array();
  for (int reason = RP_POOL_NO_REASON + 1; reason < RP_POOL_REASON_COUNT; reason++) {
    if (!pool->reasons[reason]) continue;
    struct rp__emit emit = rp__emit_begin(failed);
    rp__put_text(&emit, "reason", rp_pool_reason_name((enum rp_pool_reason)reason));
    rp__put_u64(&emit, "count", pool->reasons[reason]);
    rp__put_text(&emit, "text", rp_pool_reason_text((enum rp_pool_reason)reason));
    rp__append(array, emit.object, failed);
  }
  return array;
}

static json_t *order_json(const struct rp_order_counts *order, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "operations", order->operations);
  rp__put_u64(&emit, "streams_dropped", order->streams_dropped);
  rp__put_u64(&emit, "threads_dropped", order->threads_dropped);
  rp__put_u64(&emit, "contexts_dropped", order->contexts_dropped);
  rp__put_u64(&emit, "components_dropped", order->components_dropped);
  rp__put_u64(&emit, "components_recycled", order->components_recycled);
  rp__put_u64(&emit, "events_evicted", order->events_evicted);
  rp__put_u64(&emit, "events_dropped", order->events_dropped);
  rp__put_u64(&emit, "graphs_evicted", order->graphs_evicted);
  rp__put_u64(&emit, "captured", order->captured);
  return emit.object;
}

/* null where no memory was managed. */
static json_t *memory_json(const struct rp_device_memory_info *memory, bool *failed) {
  if (!memory->granularity_bytes) return json_null();
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "granularity_bytes", memory->granularity_bytes);
  rp__put_bool(&emit, "rdma", memory->rdma);
  rp__put_bool(&emit, "posix_fd", memory->posix_fd);
  rp__put_bool(&emit, "fabric", memory->fabric);
  rp__put_u64(&emit, "peers", memory->peers);
  rp__put_u64(&emit, "calls", memory->calls);
  rp__put_u64(&emit, "failures", memory->failures);
  rp__put_real(&emit, "create_seconds", (double)memory->create_ns / 1e9);
  rp__put_real(&emit, "map_seconds", (double)memory->map_ns / 1e9);
  rp__put_real(&emit, "unmap_seconds", (double)memory->unmap_ns / 1e9);
  return emit.object;
}

static json_t *activation_json(const struct rp_report *report, const struct rp_guard_report *guard,
                               bool *failed) {
  if (!guard->activated_ns) return json_null();
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "step", guard->activated_step);
  put_moment(&emit, report, "at", guard->activated_ns);
  rp__put_real(&emit, "duration_seconds", (double)guard->activation_duration_ns / 1e9);
  return emit.object;
}

static json_t *idle_json(const struct rp_guard_report *guard, bool *failed) {
  if (guard->active || !guard->idle_reason || !guard->idle_reason[0]) return json_null();
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_text(&emit, "reason", guard->idle_reason);
  rp__put_text(&emit, "text", guard->idle_text);
  return emit.object;
}

static void put_pool(struct rp__emit *emit, const struct rp_pool_info *pool, bool measured) {
  put_account(emit, &pool->account, measured);
  rp__put_u64(emit, "buffers", pool->buffers);
  rp__put_u64(emit, "buffers_unbound", pool->unbound);
  rp__put_u64(emit, "buffers_bound", pool->bound);
  rp__put_u64(emit, "buffers_private", pool->private_buffers);
  rp__put_u64(emit, "buffers_lost", pool->lost);
  rp__put_u64(emit, "buffers_concealed", pool->concealed);
  rp__put_u64(emit, "receives", pool->receives);
  rp__put_u64(emit, "accesses", pool->accesses);
  rp__put_u64(emit, "grown", pool->grown);
  rp__put_u64(emit, "reopened", pool->reopened);
  rp__put_u64(emit, "lent", pool->lent);
  rp__put_u64(emit, "headroom_bytes", pool->headroom_bytes);
  rp__put_u64(emit, "headroom_peak_bytes", pool->headroom_peak_bytes);
  rp__put_u64(emit, "headroom_used", pool->headroom_used);
  rp__put_u64(emit, "waits_inserted", pool->waits_inserted);
  rp__put_u64(emit, "activations", pool->activations);
  rp__put_u64(emit, "fallbacks", pool->fallbacks);
  rp__put_u64(emit, "last_bindings_dropped", pool->last_bindings_dropped);
  rp__put_bool(emit, "frozen", pool->frozen);
  rp__put_bool(emit, "fallback_pending", pool->fallback_pending);
  rp__put_u64(emit, "backend_calls", pool->backend_calls);
  rp__put_u64(emit, "backend_failures", pool->backend_failures);
}

static json_t *device_json(const struct rp_report *report, const struct rp_enforce_device *device,
                           bool *failed) {
  const struct rp_guard_report *guard = &device->guard;
  bool measured = !report->enforce->shadow;
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_int_or_null(&emit, "device", device->ordinal);
  put_refused(&emit, "refused", device->refused);
  rp__put_bool(&emit, "planned", guard->planned);
  rp__put_bool(&emit, "active", guard->active);
  rp__put(&emit, "idle", idle_json(guard, failed));
  rp__put_u64(&emit, "steps", guard->steps);
  rp__put(&emit, "activation", activation_json(report, guard, failed));
  rp__put_u64(&emit, "activations_postponed", guard->activations_postponed);
  rp__put_u64(&emit, "slack_slots", guard->slack);
  rp__put_u64(&emit, "receives_waited", guard->receives_waited);
  rp__put_real(&emit, "wait_seconds", (double)guard->wait_ns / 1e9);
  rp__put_u64(&emit, "waits_timed", guard->waits_timed);
  put_pool(&emit, &guard->pool, measured);
  rp__put(&emit, "classes", classes_json(guard, measured, failed));
  rp__put(&emit, "conflicts", conflicts_json(report, guard, failed));
  rp__put(&emit, "reasons", reasons_json(&guard->pool, failed));
  rp__put(&emit, "order", order_json(&guard->order, failed));
  rp__put_u64(&emit, "pending_dropped", guard->pending_dropped);
  rp__put_u64(&emit, "freed_forgotten", guard->freed_forgotten);
  rp__put_u64(&emit, "evidence_merged", guard->evidence_merged);
  rp__put_u64(&emit, "unowned_receives", guard->unowned_receives);
  put_rounding(&emit, guard->rounding_peak_bytes, measured);
  rp__put_u64(&emit, "boundary_failures", guard->boundary_failures);
  rp__put_bool(&emit, "plan_departed", guard->plan_departed);
  rp__put_u64(&emit, "concealed", guard->concealed);
  rp__put_u64(&emit, "guard_bytes", guard->guard_bytes);
  rp__put(&emit, "memory", memory_json(&device->memory, failed));
  return emit.object;
}

/* ---- all of it ---- */

static void add_account(struct rp_pool_account *sum, const struct rp_pool_account *account) {
  sum->physical_bytes += account->physical_bytes;
  sum->physical_peak_bytes += account->physical_peak_bytes;
  sum->one_to_one_bytes += account->one_to_one_bytes;
  sum->one_to_one_peak_bytes += account->one_to_one_peak_bytes;
  sum->requested_bytes += account->requested_bytes;
  sum->requested_peak_bytes += account->requested_peak_bytes;
  sum->saved_bytes += account->saved_bytes;
  sum->saved_peak_bytes += account->saved_peak_bytes;
}

/* Over the classes only: what else lives in the pool (weights of a receive buffer's size) saves nothing. */
static json_t *totals_json(const struct rp_enforce_report *enforce, bool *failed) {
  struct rp_pool_account sum = {0};
  uint64_t minimum = 0, rounding = 0, headroom = 0, prevented = 0, violated = 0, freed_twice = 0;
  for (size_t d = 0; d < enforce->device_count; d++) {
    const struct rp_guard_report *guard = &enforce->devices[d].guard;
    for (size_t i = 0; i < guard->class_count; i++) {
      add_account(&sum, &guard->classes[i].info.account);
      minimum += minimum_bytes(&guard->classes[i].info);
    }
    prevented += sum_conflicts(guard->pool.prevented);
    violated += sum_conflicts(guard->pool.violated);
    freed_twice += guard->double_frees;
    rounding += guard->rounding_peak_bytes;
    headroom += guard->pool.headroom_peak_bytes;
  }
  struct rp__emit emit = rp__emit_begin(failed);
  put_account(&emit, &sum, !enforce->shadow);
  rp__put_u64(&emit, "minimum_bytes", minimum);
  put_rounding(&emit, rounding, !enforce->shadow);
  rp__put_u64(&emit, "headroom_peak_bytes", headroom);
  rp__put_u64(&emit, "prevented", prevented);
  rp__put_u64(&emit, "violations", violated);
  rp__put_u64(&emit, "double_frees", freed_twice);
  return emit.object;
}

static json_t *switched_off_json(const struct rp_report *report, bool *failed) {
  const struct rp_switched_off *off = &report->switched_off;
  if (!off->seen_ns) return json_null();
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_text(&emit, "file", off->file);
  put_moment(&emit, report, "seen", off->seen_ns);
  put_moment(&emit, report, "took_effect", off->effect_ns);
  return emit.object;
}

static json_t *milestones_json(const struct rp_milestone_counts *counts, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "placed", counts->placed);
  rp__put_u64(&emit, "failed", counts->failed);
  rp__put_u64(&emit, "waits", counts->waits);
  rp__put_u64(&emit, "waits_for_all", counts->waits_for_all);
  return emit.object;
}

json_t *rp__report_enforce_json(const struct rp_report *report, bool *failed) {
  const struct rp_enforce_report *enforce = report->enforce;
  if (!enforce) return json_null();
  struct rp__emit emit = rp__emit_begin(failed);
  json_t *devices = json_array();
  for (size_t i = 0; i < enforce->device_count; i++)
    rp__append(devices, device_json(report, &enforce->devices[i], failed), failed);
  rp__put_text(&emit, "mode", enforce->shadow ? "shadow" : "enforce");
  put_refused(&emit, "refused", enforce->refused);
  rp__put(&emit, "switched_off", switched_off_json(report, failed));
  rp__put(&emit, "milestones", milestones_json(&enforce->milestones, failed));
  rp__put(&emit, "totals", totals_json(enforce, failed));
  rp__put(&emit, "devices", devices);
  return emit.object;
}
