/* The report as JSON. Owns the mapping from the structures of report.h to names;
 * dashboards/schema/report.schema.json describes the result and the two change together. Every quantity has
 * its unit in its name; what is not known is null; addresses and handles are hexadecimal text, because JSON
 * readers round large integers. */
#include "agent/report.h"

#include <stdio.h>

#include "agent/report_emit.h"
#include "agent/report_enforce.h"

static json_t *process_json(const struct rp_process_info *process, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_text(&emit, "host", process->host);
  rp__put_u64(&emit, "pid", (uint64_t)process->pid);
  rp__put_text(&emit, "command", process->command);
  rp__put_int_or_null(&emit, "rank", process->rank);
  rp__put_int_or_null(&emit, "world_size", process->world_size);
  rp__put_int_or_null(&emit, "local_rank", process->local_rank);
  rp__put_text_or_null(&emit, "rank_source", process->rank_source);
  rp__put_real(&emit, "start_unix_seconds", process->start_time_unix_seconds);
  rp__put_u64(&emit, "start_monotonic_ns", process->start_monotonic_ns);
  rp__put_text_or_null(&emit, "boot_id", process->incarnation.boot_id);
  rp__put_u64_or_null(&emit, "pid_namespace", process->incarnation.pid_namespace);
  rp__put_u64_or_null(&emit, "start_ticks", process->incarnation.start_ticks);
  return emit.object;
}

static void put_version(struct rp__emit *versions, const char *key, int version, const char *path) {
  struct rp__emit emit = rp__emit_begin(versions->failed);
  rp__put(&emit, "version", version > 0 ? json_integer(version) : json_null());
  rp__put_text_or_null(&emit, "path", path);
  rp__put(versions, key, emit.object);
}

static json_t *versions_json(const struct rp_versions *versions, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  put_version(&emit, "cuda_driver", versions->cuda_driver, versions->cuda_driver_path);
  put_version(&emit, "cuda_runtime", versions->cuda_runtime, versions->cuda_runtime_path);
  put_version(&emit, "cupti", versions->cupti, versions->cupti_path);
  put_version(&emit, "nccl", versions->nccl, versions->nccl_path);
  return emit.object;
}

static json_t *evidence_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->evidence_count && i < RP_EVIDENCE_SOURCES; i++) {
    struct rp__emit emit = rp__emit_begin(failed);
    rp__put_text(&emit, "name", report->evidence[i].name);
    rp__put_bool(&emit, "active", report->evidence[i].active);
    rp__put_text_or_null(&emit, "reason", report->evidence[i].reason);
    rp__append(array, emit.object, failed);
  }
  return array;
}

static json_t *devices_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->device_count; i++) {
    struct rp__emit emit = rp__emit_begin(failed);
    rp__put(&emit, "ordinal", json_integer(report->devices[i].ordinal));
    rp__put_text(&emit, "name", report->devices[i].name);
    rp__put_u64_or_null(&emit, "total_bytes", report->devices[i].total_bytes);
    rp__append(array, emit.object, failed);
  }
  return array;
}

static json_t *communicators_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->comm_count; i++) {
    struct rp__emit emit = rp__emit_begin(failed);
    rp__put_hex(&emit, "communicator", report->comms[i].comm);
    rp__put_hex_or_null(&emit, "communicator_id", report->comms[i].id_hash);
    rp__put_int_or_null(&emit, "rank", report->comms[i].rank);
    rp__put_int_or_null(&emit, "ranks", report->comms[i].ranks);
    rp__append(array, emit.object, failed);
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
static void put_moment(struct rp__emit *emit, const struct rp_report *report, const char *name,
                       uint64_t time_ns, uint64_t seq) {
  char key[64];
  snprintf(key, sizeof key, "%s_monotonic_ns", name);
  rp__put_u64_or_null(emit, key, time_ns);
  snprintf(key, sizeof key, "%s_seconds", name);
  if (time_ns)
    rp__put_real(emit, key, (double)(int64_t)(time_ns - report->process.start_monotonic_ns) / 1e9);
  else
    rp__put(emit, key, json_null());
  snprintf(key, sizeof key, "%s_sequence", name);
  rp__put_u64_or_null(emit, key, time_ns ? seq : 0);
}

static const char *function_name(const struct rp_report *report, uint64_t function) {
  return function && report->function_name ? report->function_name(report->function_name_context, function)
                                           : NULL;
}

static json_t *lifetime_json(const struct rp_report *report, const struct rp_lifetime *lifetime,
                             bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "step", lifetime->step);
  rp__put_u64(&emit, "microbatch", lifetime->microbatch);
  rp__put_hex(&emit, "address", lifetime->address);
  rp__put_u64(&emit, "accesses", lifetime->accesses);
  put_moment(&emit, report, "posted", lifetime->posted_ns, lifetime->posted_seq);
  put_moment(&emit, report, "first_access", lifetime->first_access_ns, lifetime->first_access_seq);
  put_moment(&emit, report, "last_access", lifetime->last_access_ns, lifetime->last_access_seq);
  put_moment(&emit, report, "released", lifetime->released_ns, lifetime->released_seq);
  rp__put_hex(&emit, "post_stream", lifetime->post_stream);
  rp__put_hex(&emit, "last_access_stream", lifetime->last_access_stream);
  rp__put_text_or_null(&emit, "label", function_name(report, lifetime->label));
  rp__put_text(&emit, "last_access_kind", rp_access_kind_name(lifetime->last_access_kind));
  rp__put_text_or_null(&emit, "last_access_kernel", function_name(report, lifetime->last_access_function));
  rp__put_text(&emit, "release_evidence", rp_release_evidence_name(lifetime->release_evidence));
  return emit.object;
}

static json_t *decision_json(enum rp_reason reason, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_bool(&emit, "poolable", reason == RP_REASON_POOLABLE);
  rp__put_text(&emit, "reason", rp_reason_name(reason));
  rp__put_text(&emit, "text", rp_reason_text(reason));
  return emit.object;
}

static void put_channel_identity(struct rp__emit *emit, const struct rp_report *report,
                                 const struct rp_channel *channel) {
  rp__put_hex(emit, "communicator", channel->comm);
  rp__put_hex_or_null(emit, "communicator_id", communicator_id(report, channel->comm));
  rp__put_int_or_null(emit, "peer", channel->peer);
  rp__put_int_or_null(emit, "device", channel->device);
  rp__put_text(emit, "direction", rp_direction_name(channel->direction));
  rp__put_u64(emit, "stage_ordinal", channel->stage_ordinal);
}

static json_t *channel_json(const struct rp_report *report, const struct rp_channel *channel, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  put_channel_identity(&emit, report, channel);
  rp__put_u64(&emit, "buffer_bytes", channel->buffer_bytes);
  rp__put_u64(&emit, "buffers", channel->buffers);
  rp__put_u64(&emit, "depth", channel->depth);
  rp__put_u64(&emit, "depth_min", channel->depth_min);
  rp__put_u64(&emit, "depth_max", channel->depth_max);
  rp__put_u64(&emit, "accesses_most", channel->accesses_most);
  rp__put_u64(&emit, "slots", channel->slots);
  rp__put_u64(&emit, "transfers", channel->transfers);
  rp__put_u64(&emit, "transferred_bytes", channel->bytes_transferred);
  rp__put_u64(&emit, "steps_complete", channel->steps_complete);
  rp__put_text(&emit, "allocation_style", rp_style_name(channel->style));
  rp__put(&emit, "decision", decision_json(channel->reason, failed));
  rp__put_u64(&emit, "held_bytes", channel->held_bytes);
  rp__put_u64(&emit, "needed_bytes", channel->needed_bytes);
  rp__put_u64(&emit, "would_save_bytes", channel->would_save_bytes);
  rp__put_u64(&emit, "unreachable_bytes", channel->unreachable_bytes);
  rp__put_bool(&emit, "estimate", channel->estimate);
  json_t *lifetimes = json_array();
  for (size_t i = 0; i < channel->lifetime_count; i++)
    rp__append(lifetimes, lifetime_json(report, &channel->lifetimes[i], failed), failed);
  rp__put(&emit, "lifetimes", lifetimes);
  return emit.object;
}

static json_t *channels_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->snapshot.channel_count; i++)
    rp__append(array, channel_json(report, &report->snapshot.channels[i], failed), failed);
  return array;
}

static json_t *totals_json(const struct rp_snapshot *snapshot, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "steps_complete", snapshot->steps_complete);
  rp__put_u64(&emit, "held_bytes", snapshot->held_bytes);
  rp__put_u64(&emit, "needed_bytes", snapshot->needed_bytes);
  rp__put_u64(&emit, "would_save_bytes", snapshot->would_save_bytes);
  return emit.object;
}

static json_t *events_json(const struct rp_report *report, bool *failed) {
  const struct rp_snapshot *snapshot = &report->snapshot;
  struct rp__emit kinds = rp__emit_begin(failed), sources = rp__emit_begin(failed),
                  dropped = rp__emit_begin(failed);
  for (int kind = RP_EVENT_NONE + 1; kind < RP_EVENT_KIND_COUNT; kind++)
    rp__put_u64(&kinds, rp_event_kind_name(kind), snapshot->events[kind]);
  for (int source = RP_SOURCE_NONE + 1; source < RP_SOURCE_COUNT; source++)
    rp__put_u64(&sources, rp_event_source_name(source), snapshot->events_by_source[source]);
  rp__put_u64(&dropped, "lifetimes", snapshot->lifetimes_dropped);
  rp__put_u64(&dropped, "allocations", snapshot->allocations_dropped);
  rp__put_u64(&dropped, "companions", snapshot->companions_dropped);
  rp__put_u64(&dropped, "labels", snapshot->labels_dropped);
  rp__put_u64(&dropped, "events", report->cost.events_lost);
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put(&emit, "by_kind", kinds.object);
  rp__put(&emit, "by_source", sources.object);
  rp__put_u64(&emit, "ignored", snapshot->events_ignored);
  rp__put(&emit, "dropped", dropped.object);
  return emit.object;
}

static json_t *refused_json(const struct rp_report *report, bool *failed) {
  if (!report->refusals_seen) return json_null();
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "count", report->allocations_refused);
  rp__put_u64(&emit, "last_bytes", report->refused_bytes);
  return emit.object;
}

static json_t *cost_json(const struct rp_report *report, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  rp__put_u64(&emit, "agent_bytes", report->cost.agent_bytes);
  rp__put_u64(&emit, "tracker_bytes", report->snapshot.tracker_bytes);
  rp__put_u64(&emit, "callbacks", report->cost.callbacks);
  rp__put_u64(&emit, "callback_hits", report->cost.callback_hits);
  rp__put_u64(&emit, "callbacks_timed", report->cost.callbacks_timed);
  rp__put_real(&emit, "callback_seconds", (double)report->cost.callback_time_ns / 1e9);
  return emit.object;
}

static json_t *configuration_json(const struct rp_report *report, bool *failed) {
  struct rp__emit emit = rp__emit_begin(failed);
  struct rp_config defaults;
  const struct rp_config *config = report->config;
  if (!config) {
    rp_config_defaults(&defaults);
    config = &defaults;
  }
  rp__put_u64(&emit, "slack_slots", config->slack);
  rp__put_u64(&emit, "min_bytes", config->min_bytes);
  rp__put_bool(&emit, "slack_auto", config->slack_auto);
  rp__put_u64(&emit, "headroom_bytes", config->headroom_bytes);
  rp__put_text(&emit, "cupti", rp_cupti_policy_name(config->cupti));
  rp__put_text(&emit, "on_violation", rp_on_violation_name(config->on_violation));
  rp__put_bool(&emit, "strict", config->strict);
  rp__put_text_or_null(&emit, "plan", config->plan_path);
  rp__put_int_or_null(&emit, "plan_rank", config->plan_rank);
  rp__put_u64_or_null(&emit, "buffer_bytes", config->buffer_bytes);
  rp__put_u64_or_null(&emit, "slots", config->slots);
  rp__put_text_or_null(&emit, "run", config->run);
  rp__put_text_or_null(&emit, "problem", config->problem);
  return emit.object;
}

/* Warnings can repeat what the environment holds, so they go through put_text's cleaning as well. */
static json_t *warnings_json(const struct rp_report *report, bool *failed) {
  json_t *array = json_array();
  for (size_t i = 0; i < report->warning_count; i++) {
    struct rp__emit holder = rp__emit_begin(failed);
    rp__put_text(&holder, "text", report->warnings[i]);
    rp__append(array, json_incref(json_object_get(holder.object, "text")), failed);
    json_decref(holder.object);
  }
  return array;
}

json_t *rp_report_to_json(const struct rp_report *report) {
  bool failed = false;
  struct rp__emit emit = rp__emit_begin(&failed);
  rp__put_text(&emit, "schema", RP_REPORT_SCHEMA);
  rp__put_text(&emit, "schema_version", RP_REPORT_SCHEMA_VERSION);
  rp__put_text(&emit, "mode", report->mode);
  rp__put_text(&emit, "state", report->state);
  rp__put_text_or_null(&emit, "passive_reason", report->passive_reason);
  rp__put_real(&emit, "written_unix_seconds", report->written_unix_seconds);
  rp__put_u64(&emit, "written_monotonic_ns", report->written_monotonic_ns);
  rp__put(&emit, "configuration", configuration_json(report, &failed));
  rp__put(&emit, "process", process_json(&report->process, &failed));
  rp__put(&emit, "versions", versions_json(&report->versions, &failed));
  rp__put(&emit, "evidence", evidence_json(report, &failed));
  rp__put(&emit, "devices", devices_json(report, &failed));
  rp__put(&emit, "communicators", communicators_json(report, &failed));
  rp__put(&emit, "channels", channels_json(report, &failed));
  rp__put(&emit, "enforcement", rp__report_enforce_json(report, &failed));
  rp__put(&emit, "totals", totals_json(&report->snapshot, &failed));
  rp__put(&emit, "events", events_json(report, &failed));
  rp__put(&emit, "agent_cost", cost_json(report, &failed));
  rp__put(&emit, "allocations_refused", refused_json(report, &failed));
  rp__put(&emit, "warnings", warnings_json(report, &failed));
  if (!failed) return emit.object;
  json_decref(emit.object);
  return NULL;
}
