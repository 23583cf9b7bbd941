/* Metrics for Prometheus. Owns the table of families. Names carry base units, counters end in _total; labels
 * say who (pid, host, rank), where (device, pp_stage, direction) and which pool, never an address, a stream
 * or a kernel. A process has a bounded number of series; one that ended leaves with its report. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/serve.h"
#include "pool/pool.h"

#define LABELS_BYTES 1024
/* Longest value of a label that comes from a report. */
#define VALUE_BYTES 128
/* Channels and classes of one process that have series of their own. */
#define ROWS_OF_PROCESS 64

enum family {
  BUILD_INFO,
  REPORTS,
  REPORTS_SKIPPED,
  REPORTS_DROPPED,
  FOLDER_READABLE,
  PROCESS_INFO,
  REPORT_AGE,
  DEVICE_BYTES,
  STEPS,
  HELD,
  NEEDED,
  WOULD_SAVE,
  AGENT_BYTES,
  AGENT_CALLBACKS,
  AGENT_SECONDS,
  EVENTS_LOST,
  CHANNEL_BUFFERS,
  CHANNEL_DEPTH,
  CHANNEL_SLOTS,
  CHANNEL_BUFFER_BYTES,
  CHANNEL_HELD,
  CHANNEL_NEEDED,
  CHANNEL_WOULD_SAVE,
  CHANNEL_POOLABLE,
  CHANNEL_TRANSFERS,
  CHANNEL_BYTES,
  POOL_ACTIVE,
  POOL_PHYSICAL,
  POOL_PHYSICAL_PEAK,
  POOL_SAVED,
  POOL_STOCK,
  POOL_GROWN,
  POOL_WAITS,
  POOL_WAIT_SECONDS,
  POOL_FALLBACKS,
  POOL_VIOLATIONS,
  POOL_PREVENTED,
  CLASS_SLOTS,
  CLASS_PHYSICAL,
  CLASS_SAVED,
  ROWS_DROPPED,
  FAMILIES
};

enum type { GAUGE, COUNTER, INFO };

static const struct {
  const char *name; /**< without _total and _info */
  enum type type;
  const char *help;
} families[FAMILIES] = {
    [BUILD_INFO] = {"recvpool_build", INFO, "Version of the server."},
    [REPORTS] = {"recvpool_reports", GAUGE, "Processes with a report in the folder."},
    [REPORTS_SKIPPED] = {"recvpool_reports_skipped", GAUGE, "Files in the folder that are no usable report."},
    [REPORTS_DROPPED] = {"recvpool_reports_dropped", GAUGE, "Reports beyond the number that is kept."},
    [FOLDER_READABLE] = {"recvpool_report_folder_readable", GAUGE, "1 while the report folder can be read."},
    [PROCESS_INFO] = {"recvpool_process", INFO, "A process that is watched, and which job it belongs to."},
    [REPORT_AGE] = {"recvpool_report_age_seconds", GAUGE, "Time since the process wrote its report."},
    [DEVICE_BYTES] = {"recvpool_device_memory_bytes", GAUGE, "Memory of a device that the process uses."},
    [STEPS] = {"recvpool_steps", COUNTER, "Complete training steps seen."},
    [HELD] = {"recvpool_held_bytes", GAUGE, "Device memory allocated for receive buffers."},
    [NEEDED] = {"recvpool_needed_bytes", GAUGE, "Device memory that the buffers in flight at once take."},
    [WOULD_SAVE] = {"recvpool_would_save_bytes", GAUGE, "Device memory that pooling would give back."},
    [AGENT_BYTES] = {"recvpool_agent_memory_bytes", GAUGE, "Host memory of the agent in the process."},
    [AGENT_CALLBACKS] = {"recvpool_agent_callbacks", COUNTER, "Calls that the agent looked at."},
    [AGENT_SECONDS] = {"recvpool_agent_callback_seconds", COUNTER, "Time spent looking at them."},
    [EVENTS_LOST] = {"recvpool_events_lost", COUNTER, "Events that the agent could not keep."},
    [CHANNEL_BUFFERS] = {"recvpool_channel_buffers", GAUGE, "Receive buffers used in one step (N)."},
    [CHANNEL_DEPTH] = {"recvpool_channel_depth", GAUGE,
                       "Most of them in flight at once in the last step (D)."},
    [CHANNEL_SLOTS] = {"recvpool_channel_slots", GAUGE, "Slots that a pool would have (K)."},
    [CHANNEL_BUFFER_BYTES] = {"recvpool_channel_buffer_bytes", GAUGE, "Size of one receive."},
    [CHANNEL_HELD] = {"recvpool_channel_held_bytes", GAUGE, "Device memory held by the channel's buffers."},
    [CHANNEL_NEEDED] = {"recvpool_channel_needed_bytes", GAUGE, "Device memory that those in flight take."},
    [CHANNEL_WOULD_SAVE] = {"recvpool_channel_would_save_bytes", GAUGE,
                            "Device memory pooling would give back."},
    [CHANNEL_POOLABLE] = {"recvpool_channel_poolable", GAUGE, "1 where fewer slots than buffers are enough."},
    [CHANNEL_TRANSFERS] = {"recvpool_channel_transfers", COUNTER, "Receives."},
    [CHANNEL_BYTES] = {"recvpool_channel_transferred_bytes", COUNTER, "Bytes received."},
    [POOL_ACTIVE] = {"recvpool_pool_active", GAUGE, "1 while buffers share memory."},
    [POOL_PHYSICAL] = {"recvpool_pool_physical_bytes", GAUGE, "Device memory the pool holds."},
    [POOL_PHYSICAL_PEAK] = {"recvpool_pool_physical_peak_bytes", GAUGE, "Most it held at once."},
    [POOL_SAVED] = {"recvpool_pool_saved_bytes", GAUGE, "Device memory saved now, as measured."},
    [POOL_STOCK] = {"recvpool_pool_one_to_one_bytes", GAUGE,
                    "Device memory that one allocation for each buffer would hold."},
    [POOL_GROWN] = {"recvpool_pool_grown", COUNTER, "Receives for which the pool had to grow."},
    [POOL_WAITS] = {"recvpool_pool_waits", COUNTER, "Waits that the guard inserted."},
    [POOL_WAIT_SECONDS] = {"recvpool_pool_wait_seconds", COUNTER, "Device time that these waits took."},
    [POOL_FALLBACKS] = {"recvpool_pool_fallbacks", COUNTER,
                        "Times all buffers got memory of their own again."},
    [POOL_VIOLATIONS] = {"recvpool_pool_violations", COUNTER, "Unsafe reuse that was not prevented."},
    [POOL_PREVENTED] = {"recvpool_pool_prevented", COUNTER,
                        "Unsafe reuse that was, or would have been, prevented."},
    [CLASS_SLOTS] = {"recvpool_pool_class_slots", GAUGE, "Slots of a pool class (K)."},
    [CLASS_PHYSICAL] = {"recvpool_pool_class_physical_bytes", GAUGE, "Device memory a pool class holds."},
    [CLASS_SAVED] = {"recvpool_pool_class_saved_bytes", GAUGE,
                     "Device memory saved by a pool class, as measured."},
    [ROWS_DROPPED] = {"recvpool_series_dropped", GAUGE,
                      "Channels and classes beyond those shown per process."},
};

struct metrics {
  FILE *out[FAMILIES];
  char *text[FAMILIES];
  size_t bytes[FAMILIES];
  bool open_metrics;
  double now;
  uint64_t rows_dropped;
  struct seen {
    char who[LABELS_BYTES];
    double written;
    uint64_t id;
  } * seen;
  size_t seen_count;
};

static bool begin(struct metrics *m) {
  for (int f = 0; f < FAMILIES; f++)
    if (!(m->out[f] = open_memstream(&m->text[f], &m->bytes[f]))) return false;
  return true;
}

static const char *suffix(int family) {
  return families[family].type == COUNTER ? "_total" : families[family].type == INFO ? "_info" : "";
}

static void sample(struct metrics *m, int family, const char *labels, double value) {
  fprintf(m->out[family], "%s%s{%s} %.17g\n", families[family].name, suffix(family), labels, value);
}

/* Appends name="value", escaped as the format asks; control characters become '?'. */
static void label(char *labels, const char *name, const char *value) {
  size_t used = strlen(labels), length = 0;
  if (used + strlen(name) + 2 * VALUE_BYTES + 8 > LABELS_BYTES) return;
  used += (size_t)sprintf(labels + used, "%s%s=\"", used ? "," : "", name);
  for (; *value && length < VALUE_BYTES; value++, length++) {
    unsigned char c = (unsigned char)*value;
    if (length > VALUE_BYTES - 4 && c >= 0xc0) break; /* no half of a character */
    if (c == '\\' || c == '"') labels[used++] = '\\';
    labels[used++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
  }
  strcpy(labels + used, "\"");
}

static void label_integer(char *labels, const char *name, const json_t *value) {
  char text[32] = "";
  if (json_is_integer(value)) snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
  label(labels, name, text);
}

static void label_text(char *labels, const char *name, const json_t *value) {
  const char *text = json_string_value(value);
  label(labels, name, text ? text : "");
}

/* Two series of one name and equal labels would make a scraper refuse everything: whether an entry before
 * `index` has the same `key`. */
static bool is_repeated(const json_t *array, size_t index, const char *key) {
  json_t *value = json_object_get(json_array_get(array, index), key);
  for (size_t i = 0; i < index; i++) {
    json_t *other = json_object_get(json_array_get(array, i), key);
    bool both_none = !json_is_integer(value) && !json_is_integer(other);
    if (both_none || json_equal(value, other)) return true;
  }
  return false;
}

/* A number of the report as a sample; null and absent are no sample. */
static void number(struct metrics *m, int family, const char *labels, const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (json_is_boolean(value)) sample(m, family, labels, json_is_true(value));
  if (json_is_number(value)) sample(m, family, labels, json_number_value(value));
}

static void who(const struct rp_serve_process *process, char labels[LABELS_BYTES]) {
  const json_t *identity = json_object_get(process->summary, "process");
  labels[0] = '\0';
  label_text(labels, "host", json_object_get(identity, "host"));
  label_integer(labels, "pid", json_object_get(identity, "pid"));
  label_integer(labels, "rank", json_object_get(identity, "rank"));
}

/* The same pid may have been used before: of equal labels the latest counts. */
static void note_seen(void *context, const struct rp_serve_process *process) {
  struct metrics *m = context;
  char labels[LABELS_BYTES];
  who(process, labels);
  for (size_t i = 0; i < m->seen_count; i++) {
    struct seen *known = &m->seen[i];
    if (strcmp(known->who, labels) != 0) continue;
    if (process->written_unix_seconds >= known->written) {
      known->id = process->id;
      known->written = process->written_unix_seconds;
    }
    return;
  }
  struct seen *grown = realloc(m->seen, (m->seen_count + 1) * sizeof *grown);
  if (!grown) return;
  m->seen = grown;
  struct seen *entry = &m->seen[m->seen_count++];
  strcpy(entry->who, labels);
  entry->written = process->written_unix_seconds;
  entry->id = process->id;
}

static bool latest(const struct metrics *m, const struct rp_serve_process *process) {
  for (size_t i = 0; i < m->seen_count; i++)
    if (m->seen[i].id == process->id) return true;
  return false;
}

static void add_channel(struct metrics *m, const char *process, size_t index, const json_t *channel) {
  char labels[LABELS_BYTES], text[32];
  const json_t *decision = json_object_get(channel, "decision");
  snprintf(labels, sizeof labels, "%s", process);
  snprintf(text, sizeof text, "%zu", index);
  label(labels, "channel", text);
  label_integer(labels, "device", json_object_get(channel, "device"));
  label_integer(labels, "pp_stage", json_object_get(channel, "stage_ordinal"));
  label_text(labels, "direction", json_object_get(channel, "direction"));
  number(m, CHANNEL_BUFFERS, labels, channel, "buffers");
  number(m, CHANNEL_DEPTH, labels, channel, "depth");
  number(m, CHANNEL_SLOTS, labels, channel, "slots");
  number(m, CHANNEL_BUFFER_BYTES, labels, channel, "buffer_bytes");
  number(m, CHANNEL_HELD, labels, channel, "held_bytes");
  number(m, CHANNEL_NEEDED, labels, channel, "needed_bytes");
  number(m, CHANNEL_WOULD_SAVE, labels, channel, "would_save_bytes");
  number(m, CHANNEL_TRANSFERS, labels, channel, "transfers");
  number(m, CHANNEL_BYTES, labels, channel, "transferred_bytes");
  number(m, CHANNEL_POOLABLE, labels, decision, "poolable");
}

static void add_conflicts(struct metrics *m, int family, const char *device, const json_t *counts) {
  for (int kind = RP_POOL_NO_CONFLICT + 1; kind < RP_POOL_CONFLICT_COUNT; kind++) {
    const char *name = rp_pool_conflict_name((enum rp_pool_conflict_kind)kind);
    char labels[LABELS_BYTES];
    snprintf(labels, sizeof labels, "%s", device);
    label(labels, "kind", name);
    number(m, family, labels, counts, name);
  }
}

static void add_class(struct metrics *m, const char *device, const json_t *class) {
  char labels[LABELS_BYTES];
  snprintf(labels, sizeof labels, "%s", device);
  label_integer(labels, "pool_class", json_object_get(class, "class"));
  label_integer(labels, "pp_stage", json_object_get(class, "stage"));
  label_text(labels, "direction", json_object_get(class, "direction"));
  number(m, CLASS_SLOTS, labels, class, "slots");
  number(m, CLASS_PHYSICAL, labels, class, "physical_bytes");
  number(m, CLASS_SAVED, labels, class, "saved_bytes");
}

static void add_device(struct metrics *m, const char *process, const char *mode, const json_t *device) {
  char labels[LABELS_BYTES];
  const json_t *conflicts = json_object_get(device, "conflicts"),
               *classes = json_object_get(device, "classes");
  snprintf(labels, sizeof labels, "%s", process);
  label_integer(labels, "device", json_object_get(device, "device"));
  label(labels, "mode", mode);
  number(m, POOL_ACTIVE, labels, device, "active");
  number(m, POOL_PHYSICAL, labels, device, "physical_bytes");
  number(m, POOL_PHYSICAL_PEAK, labels, device, "physical_peak_bytes");
  number(m, POOL_SAVED, labels, device, "saved_bytes");
  number(m, POOL_STOCK, labels, device, "one_to_one_bytes");
  number(m, POOL_GROWN, labels, device, "grown");
  number(m, POOL_WAITS, labels, device, "waits_inserted");
  number(m, POOL_WAIT_SECONDS, labels, device, "wait_seconds");
  number(m, POOL_FALLBACKS, labels, device, "fallbacks");
  add_conflicts(m, POOL_VIOLATIONS, labels, json_object_get(conflicts, "violated"));
  add_conflicts(m, POOL_PREVENTED, labels, json_object_get(conflicts, "prevented"));
  for (size_t i = 0; i < json_array_size(classes); i++)
    if (i < ROWS_OF_PROCESS && !is_repeated(classes, i, "class"))
      add_class(m, labels, json_array_get(classes, i));
    else
      m->rows_dropped++;
}

/* The largest communicator of a process is the same on all ranks of a job, on whatever machine they are: its
 * number names the job. NULL where none is known. */
static const json_t *job_of(const json_t *report) {
  const json_t *found = NULL;
  json_int_t most = -1;
  size_t i;
  json_t *communicator;
  json_array_foreach(json_object_get(report, "communicators"), i, communicator) {
    const json_t *id = json_object_get(communicator, "communicator_id");
    json_int_t ranks = json_integer_value(json_object_get(communicator, "ranks"));
    if (!json_is_string(id) || ranks < most) continue;
    if (ranks == most && strcmp(json_string_value(id), json_string_value(found)) > 0) continue;
    found = id;
    most = ranks;
  }
  return found;
}

static void add_devices(struct metrics *m, const char *process, const json_t *report) {
  const json_t *devices = json_object_get(report, "devices");
  for (size_t i = 0; i < json_array_size(devices) && i < ROWS_OF_PROCESS; i++) {
    if (is_repeated(devices, i, "ordinal")) continue;
    char labels[LABELS_BYTES];
    snprintf(labels, sizeof labels, "%s", process);
    label_integer(labels, "device", json_object_get(json_array_get(devices, i), "ordinal"));
    number(m, DEVICE_BYTES, labels, json_array_get(devices, i), "total_bytes");
  }
}

static void add_info(struct metrics *m, const char *process, const json_t *report, bool ended) {
  char labels[LABELS_BYTES];
  snprintf(labels, sizeof labels, "%s", process);
  const char *job = json_string_value(job_of(report));
  label(labels, "training_job", job ? job + (strncmp(job, "0x", 2) == 0 ? 2 : 0) : "");
  label_text(labels, "mode", json_object_get(report, "mode"));
  if (ended)
    label(labels, "state", "ended");
  else
    label_text(labels, "state", json_object_get(report, "state"));
  sample(m, PROCESS_INFO, labels, 1);
}

static void add_process(void *context, const struct rp_serve_process *process) {
  struct metrics *m = context;
  char labels[LABELS_BYTES];
  const json_t *report = process->summary, *totals = json_object_get(report, "totals");
  const json_t *cost = json_object_get(report, "agent_cost"), *channels = json_object_get(report, "channels");
  const json_t *dropped = json_object_get(json_object_get(report, "events"), "dropped");
  const json_t *enforcement = json_object_get(report, "enforcement");
  const json_t *devices = json_object_get(enforcement, "devices");
  const char *mode = json_string_value(json_object_get(enforcement, "mode"));
  if (!latest(m, process)) return;
  who(process, labels);
  add_info(m, labels, report, process->ended);
  add_devices(m, labels, report);
  sample(m, REPORT_AGE, labels, m->now - process->written_unix_seconds);
  number(m, STEPS, labels, totals, "steps_complete");
  number(m, HELD, labels, totals, "held_bytes");
  number(m, NEEDED, labels, totals, "needed_bytes");
  number(m, WOULD_SAVE, labels, totals, "would_save_bytes");
  number(m, AGENT_BYTES, labels, cost, "agent_bytes");
  number(m, AGENT_CALLBACKS, labels, cost, "callbacks");
  number(m, AGENT_SECONDS, labels, cost, "callback_seconds");
  number(m, EVENTS_LOST, labels, dropped, "events");
  for (size_t i = 0; i < json_array_size(channels); i++)
    if (i < ROWS_OF_PROCESS)
      add_channel(m, labels, i, json_array_get(channels, i));
    else
      m->rows_dropped++;
  for (size_t i = 0; i < json_array_size(devices); i++)
    if (i < ROWS_OF_PROCESS && !is_repeated(devices, i, "device"))
      add_device(m, labels, mode ? mode : "", json_array_get(devices, i));
    else
      m->rows_dropped++;
}

static void add_server(struct metrics *m, struct rp_serve_store *store) {
  struct rp_serve_counts counts = rp_serve_store_counts(store);
  sample(m, BUILD_INFO, "version=\"" RECVPOOL_VERSION "\"", 1);
  fprintf(m->out[REPORTS], "recvpool_reports %zu\n", m->seen_count);
  fprintf(m->out[REPORTS_SKIPPED], "recvpool_reports_skipped %llu\n", (unsigned long long)counts.skipped);
  fprintf(m->out[REPORTS_DROPPED], "recvpool_reports_dropped %llu\n", (unsigned long long)counts.dropped);
  fprintf(m->out[FOLDER_READABLE], "recvpool_report_folder_readable %d\n", counts.error == 0);
  fprintf(m->out[ROWS_DROPPED], "recvpool_series_dropped %llu\n", (unsigned long long)m->rows_dropped);
}

/* The format wants a counter's family named with _total in one dialect and without in the other. */
static void write_head(const struct metrics *m, int family, FILE *out) {
  static const char *const words[] = {[GAUGE] = "gauge", [COUNTER] = "counter", [INFO] = "gauge"};
  const char *tail = suffix(family), *word = words[families[family].type];
  if (m->open_metrics && families[family].type != GAUGE) {
    tail = "";
    if (families[family].type == INFO) word = "info";
  }
  fprintf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", families[family].name, tail, families[family].help,
          families[family].name, tail, word);
}

char *rp_serve_metrics(struct rp_serve_store *store, bool open_metrics, size_t *bytes) {
  struct metrics m = {.open_metrics = open_metrics, .now = rp_serve_now()};
  char *text = NULL;
  FILE *out = begin(&m) ? open_memstream(&text, bytes) : NULL;
  if (out) {
    rp_serve_store_each(store, note_seen, &m);
    rp_serve_store_each(store, add_process, &m);
    add_server(&m, store);
  }
  for (int f = 0; f < FAMILIES; f++) {
    if (m.out[f]) (void)fclose(m.out[f]);
    if (out && m.bytes[f]) {
      write_head(&m, f, out);
      (void)fwrite(m.text[f], 1, m.bytes[f], out);
    }
    free(m.text[f]);
  }
  if (out && open_metrics) fputs("# EOF\n", out);
  if (out && fclose(out) != 0) {
    free(text);
    text = NULL;
  }
  free(m.seen);
  return text;
}
