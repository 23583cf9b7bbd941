/* The report as JSON. Owns the mapping from the structures of report.h to names;
 * dashboards/schema/report.schema.json describes the result and the two change together. Every quantity has
 * its unit in its name; what is not known is null; addresses and handles are hexadecimal text, because JSON
 * readers round large integers. */
#include "agent/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* An object under construction. One flag is shared by all objects of a report and tested once, at the end. */
struct emit {
  json_t *object;
  bool *failed;
};

static struct emit emit_begin(bool *failed) {
  struct emit emit = {json_object(), failed};
  if (!emit.object) *failed = true;
  return emit;
}

/* Steals `value`. */
static void put(struct emit *emit, const char *key, json_t *value) {
  if (json_object_set_new(emit->object, key, value) != 0) *emit->failed = true;
}

/* Steals `value`. */
static void append(json_t *array, json_t *value, bool *failed) {
  if (json_array_append_new(array, value) != 0) *failed = true;
}

static void put_u64(struct emit *emit, const char *key, uint64_t value) {
  put(emit, key, json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value));
}

/* Zero is "not seen". */
static void put_u64_or_null(struct emit *emit, const char *key, uint64_t value) {
  if (value)
    put_u64(emit, key, value);
  else
    put(emit, key, json_null());
}

/* Negative is "not known". */
static void put_int_or_null(struct emit *emit, const char *key, int value) {
  put(emit, key, value < 0 ? json_null() : json_integer(value));
}

static void put_real(struct emit *emit, const char *key, double value) {
  put(emit, key, isfinite(value) ? json_real(value) : json_null());
}

static void put_bool(struct emit *emit, const char *key, bool value) {
  put(emit, key, json_boolean(value));
}

static void put_hex(struct emit *emit, const char *key, uint64_t value) {
  char text[2 + 16 + 1];
  snprintf(text, sizeof text, "0x%" PRIx64, value);
  put(emit, key, json_string(text));
}

static void put_hex_or_null(struct emit *emit, const char *key, uint64_t value) {
  if (value)
    put_hex(emit, key, value);
  else
    put(emit, key, json_null());
}

/* Length of the well-formed UTF-8 sequence at `s`, 0 if there is none (overlong forms, surrogates and code
 * points past U+10FFFF are not well-formed). Stops at the NUL, which is no continuation byte. */
static size_t utf8_sequence(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  for (size_t i = 1; i < length; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
  if (s[0] == 0xed && s[1] > 0x9f) return 0;
  if (s[0] == 0xf0 && s[1] < 0x90) return 0;
  if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
  return length;
}

/* Text from outside: bytes that are not UTF-8 become "\xNN", a backslash stays as it is. */
static void put_text(struct emit *emit, const char *key, const char *text) {
  static const char hex[] = "0123456789abcdef";
  const unsigned char *in = (const unsigned char *)(text ? text : "");
  char *clean = malloc(4 * strlen((const char *)in) + 1);
  if (!clean) {
    *emit->failed = true;
    return;
  }
  size_t used = 0;
  while (*in) {
    size_t length = utf8_sequence(in);
    if (length) {
      memcpy(clean + used, in, length);
      used += length;
      in += length;
    } else {
      clean[used++] = '\\';
      clean[used++] = 'x';
      clean[used++] = hex[*in >> 4];
      clean[used++] = hex[*in & 15];
      in++;
    }
  }
  put(emit, key, json_stringn(clean, used));
  free(clean);
}

static void put_text_or_null(struct emit *emit, const char *key, const char *text) {
  if (text && text[0])
    put_text(emit, key, text);
  else
    put(emit, key, json_null());
}

static json_t *process_json(const struct rp_process_info *process, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_text(&emit, "host", process->host);
  put_u64(&emit, "pid", (uint64_t)process->pid);
  put_text(&emit, "command", process->command);
  put_int_or_null(&emit, "rank", process->rank);
  put_int_or_null(&emit, "world_size", process->world_size);
  put_int_or_null(&emit, "local_rank", process->local_rank);
  put_text_or_null(&emit, "rank_source", process->rank_source);
  put_real(&emit, "start_unix_seconds", process->start_time_unix_seconds);
  put_u64(&emit, "start_monotonic_ns", process->start_monotonic_ns);
  return emit.object;
}

static void put_version(struct emit *versions, const char *key, int version, const char *path) {
  struct emit emit = emit_begin(versions->failed);
  put(&emit, "version", version > 0 ? json_integer(version) : json_null());
  put_text_or_null(&emit, "path", path);
  put(versions, key, emit.object);
}

static json_t *versions_json(const struct rp_versions *versions, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_version(&emit, "cuda_driver", versions->cuda_driver, versions->cuda_driver_path);
  put_version(&emit, "cuda_runtime", versions->cuda_runtime, versions->cuda_runtime_path);
  put_version(&emit, "cupti", versions->cupti, versions->cupti_path);
  put_version(&emit, "nccl", versions->nccl, versions->nccl_path);
  return emit.object;
}

static json_t *evidence_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->evidence_count && i < RP_EVIDENCE_SOURCES; i++) {
    struct emit emit = emit_begin(failed);
    put_text(&emit, "name", report->evidence[i].name);
    put_bool(&emit, "active", report->evidence[i].active);
    put_text_or_null(&emit, "reason", report->evidence[i].reason);
    append(array, emit.object, failed);
  }
  return array;
}

static json_t *devices_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->device_count; i++) {
    struct emit emit = emit_begin(failed);
    put(&emit, "ordinal", json_integer(report->devices[i].ordinal));
    put_text(&emit, "name", report->devices[i].name);
    put_u64_or_null(&emit, "total_bytes", report->devices[i].total_bytes);
    append(array, emit.object, failed);
  }
  return array;
}

static json_t *communicators_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->comm_count; i++) {
    struct emit emit = emit_begin(failed);
    put_hex(&emit, "communicator", report->comms[i].comm);
    put_hex_or_null(&emit, "communicator_id", report->comms[i].id_hash);
    put_int_or_null(&emit, "rank", report->comms[i].rank);
    put_int_or_null(&emit, "ranks", report->comms[i].ranks);
    append(array, emit.object, failed);
  }
  return array;
}

static uint64_t communicator_id(const struct rp_report *report, uint64_t comm) {
  for (size_t i = 0; i < report->comm_count; i++)
    if (report->comms[i].comm == comm) return report->comms[i].id_hash;
  return 0;
}

/* One moment of a lifetime, three ways: exactly, since the process attached, and as place in the order of
 * events. */
static void put_moment(struct emit *emit, const struct rp_report *report, const char *name, uint64_t time_ns,
                       uint64_t seq) {
  char key[64];
  snprintf(key, sizeof key, "%s_monotonic_ns", name);
  put_u64_or_null(emit, key, time_ns);
  snprintf(key, sizeof key, "%s_seconds", name);
  if (time_ns)
    put_real(emit, key, (double)(int64_t)(time_ns - report->process.start_monotonic_ns) / 1e9);
  else
    put(emit, key, json_null());
  snprintf(key, sizeof key, "%s_sequence", name);
  put_u64_or_null(emit, key, time_ns ? seq : 0);
}

static const char *function_name(const struct rp_report *report, uint64_t function) {
  return function && report->function_name ? report->function_name(report->function_name_context, function)
                                           : NULL;
}

static json_t *lifetime_json(const struct rp_report *report, const struct rp_lifetime *lifetime,
                             bool *failed) {
  struct emit emit = emit_begin(failed);
  put_u64(&emit, "step", lifetime->step);
  put_u64(&emit, "microbatch", lifetime->microbatch);
  put_hex(&emit, "address", lifetime->address);
  put_u64(&emit, "accesses", lifetime->accesses);
  put_moment(&emit, report, "posted", lifetime->posted_ns, lifetime->posted_seq);
  put_moment(&emit, report, "first_access", lifetime->first_access_ns, lifetime->first_access_seq);
  put_moment(&emit, report, "last_access", lifetime->last_access_ns, lifetime->last_access_seq);
  put_moment(&emit, report, "released", lifetime->released_ns, lifetime->released_seq);
  put_hex(&emit, "post_stream", lifetime->post_stream);
  put_hex(&emit, "last_access_stream", lifetime->last_access_stream);
  put_text_or_null(&emit, "label", function_name(report, lifetime->label));
  put_text(&emit, "last_access_kind", rp_access_kind_name(lifetime->last_access_kind));
  put_text_or_null(&emit, "last_access_kernel", function_name(report, lifetime->last_access_function));
  put_text(&emit, "release_evidence", rp_release_evidence_name(lifetime->release_evidence));
  return emit.object;
}

static json_t *decision_json(enum rp_reason reason, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_bool(&emit, "poolable", reason == RP_REASON_POOLABLE);
  put_text(&emit, "reason", rp_reason_name(reason));
  put_text(&emit, "text", rp_reason_text(reason));
  return emit.object;
}

static void put_channel_identity(struct emit *emit, const struct rp_report *report,
                                 const struct rp_channel *channel) {
  put_hex(emit, "communicator", channel->comm);
  put_hex_or_null(emit, "communicator_id", communicator_id(report, channel->comm));
  put_int_or_null(emit, "peer", channel->peer);
  put_int_or_null(emit, "device", channel->device);
  put_text(emit, "direction", rp_direction_name(channel->direction));
  put_u64(emit, "stage_ordinal", channel->stage_ordinal);
}

static json_t *channel_json(const struct rp_report *report, const struct rp_channel *channel, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_channel_identity(&emit, report, channel);
  put_u64(&emit, "buffer_bytes", channel->buffer_bytes);
  put_u64(&emit, "buffers", channel->buffers);
  put_u64(&emit, "depth", channel->depth);
  put_u64(&emit, "depth_min", channel->depth_min);
  put_u64(&emit, "depth_max", channel->depth_max);
  put_u64(&emit, "slots", channel->slots);
  put_u64(&emit, "transfers", channel->transfers);
  put_u64(&emit, "transferred_bytes", channel->bytes_transferred);
  put_u64(&emit, "steps_complete", channel->steps_complete);
  put_text(&emit, "allocation_style", rp_style_name(channel->style));
  put(&emit, "decision", decision_json(channel->reason, failed));
  put_u64(&emit, "held_bytes", channel->held_bytes);
  put_u64(&emit, "needed_bytes", channel->needed_bytes);
  put_u64(&emit, "would_save_bytes", channel->would_save_bytes);
  put_u64(&emit, "unreachable_bytes", channel->unreachable_bytes);
  put_bool(&emit, "estimate", channel->estimate);
  json_t *lifetimes = json_array();
  for (size_t i = 0; i < channel->lifetime_count; i++)
    append(lifetimes, lifetime_json(report, &channel->lifetimes[i], failed), failed);
  put(&emit, "lifetimes", lifetimes);
  return emit.object;
}

static json_t *channels_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->snapshot.channel_count; i++)
    append(array, channel_json(report, &report->snapshot.channels[i], failed), failed);
  return array;
}

static json_t *totals_json(const struct rp_snapshot *snapshot, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_u64(&emit, "steps_complete", snapshot->steps_complete);
  put_u64(&emit, "held_bytes", snapshot->held_bytes);
  put_u64(&emit, "needed_bytes", snapshot->needed_bytes);
  put_u64(&emit, "would_save_bytes", snapshot->would_save_bytes);
  return emit.object;
}

static json_t *events_json(const struct rp_report *report, bool *failed) {
  const struct rp_snapshot *snapshot = &report->snapshot;
  struct emit kinds = emit_begin(failed), sources = emit_begin(failed), dropped = emit_begin(failed);
  for (int kind = RP_EVENT_NONE + 1; kind < RP_EVENT_KIND_COUNT; kind++)
    put_u64(&kinds, rp_event_kind_name(kind), snapshot->events[kind]);
  for (int source = RP_SOURCE_NONE + 1; source < RP_SOURCE_COUNT; source++)
    put_u64(&sources, rp_event_source_name(source), snapshot->events_by_source[source]);
  put_u64(&dropped, "lifetimes", snapshot->lifetimes_dropped);
  put_u64(&dropped, "allocations", snapshot->allocations_dropped);
  put_u64(&dropped, "companions", snapshot->companions_dropped);
  put_u64(&dropped, "labels", snapshot->labels_dropped);
  put_u64(&dropped, "events", report->cost.events_lost);
  struct emit emit = emit_begin(failed);
  put(&emit, "by_kind", kinds.object);
  put(&emit, "by_source", sources.object);
  put_u64(&emit, "ignored", snapshot->events_ignored);
  put(&emit, "dropped", dropped.object);
  return emit.object;
}

static json_t *cost_json(const struct rp_report *report, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_u64(&emit, "agent_bytes", report->cost.agent_bytes);
  put_u64(&emit, "tracker_bytes", report->snapshot.tracker_bytes);
  put_u64(&emit, "callbacks", report->cost.callbacks);
  put_u64(&emit, "callback_hits", report->cost.callback_hits);
  put_u64(&emit, "callbacks_timed", report->cost.callbacks_timed);
  put_real(&emit, "callback_seconds", (double)report->cost.callback_time_ns / 1e9);
  return emit.object;
}

static json_t *configuration_json(const struct rp_report *report, bool *failed) {
  struct emit emit = emit_begin(failed);
  put_u64(&emit, "slack_slots", report->slack);
  put_u64(&emit, "min_bytes", report->min_bytes);
  return emit.object;
}

/* Warnings can repeat what the environment holds, so they go through put_text's cleaning as well. */
static json_t *warnings_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->warning_count; i++) {
    struct emit holder = emit_begin(failed);
    put_text(&holder, "text", report->warnings[i]);
    append(array, json_incref(json_object_get(holder.object, "text")), failed);
    json_decref(holder.object);
  }
  return array;
}

json_t *rp_report_to_json(const struct rp_report *report) {
  bool failed = false;
  struct emit emit = emit_begin(&failed);
  put_text(&emit, "schema", RP_REPORT_SCHEMA);
  put_text(&emit, "schema_version", RP_REPORT_SCHEMA_VERSION);
  put_text(&emit, "mode", report->mode);
  put_text(&emit, "state", report->state);
  put_text_or_null(&emit, "passive_reason", report->passive_reason);
  put_real(&emit, "written_unix_seconds", report->written_unix_seconds);
  put_u64(&emit, "written_monotonic_ns", report->written_monotonic_ns);
  put(&emit, "configuration", configuration_json(report, &failed));
  put(&emit, "process", process_json(&report->process, &failed));
  put(&emit, "versions", versions_json(&report->versions, &failed));
  put(&emit, "evidence", evidence_json(report, &failed));
  put(&emit, "devices", devices_json(report, &failed));
  put(&emit, "communicators", communicators_json(report, &failed));
  put(&emit, "channels", channels_json(report, &failed));
  put(&emit, "totals", totals_json(&report->snapshot, &failed));
  put(&emit, "events", events_json(report, &failed));
  put(&emit, "agent_cost", cost_json(report, &failed));
  put(&emit, "warnings", warnings_json(report, &failed));
  if (!failed) return emit.object;
  json_decref(emit.object);
  return NULL;
}
