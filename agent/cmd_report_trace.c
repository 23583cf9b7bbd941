/* `recvpool report --trace`: the file around the events of each process, and one clock for all of them. */
#include "agent/cmd_report_trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"

/* Processes of one host share its monotonic clock, unless the host was started again or two have one name. */
#define SAME_CLOCK_NS 1000000000.0

/* The reports of one job. */
struct range {
  const struct rp_read_report *reports;
  size_t count;
};

/* Between a report's monotonic clock and the time of day. Times of day have some hundred nanoseconds of
 * error, so that one offset for all of a host keeps their order. */
static int64_t *offsets_of(const struct range *range) {
  int64_t *offsets = malloc((range->count + 1) * sizeof *offsets);
  json_t *hosts = json_object();
  for (size_t i = 0; offsets && i < range->count; i++) {
    const struct rp_read_digest *digest = range->reports[i].digest;
    double start_ns = digest->start_unix_seconds * 1e9;
    bool sane = start_ns > 0 && start_ns < 4e18; /* a file can say anything */
    int64_t own = (sane ? (int64_t)start_ns : 0) - digest->start_monotonic_ns;
    json_t *name = rp__json_text(digest->host), *known = json_object_get(hosts, json_string_value(name));
    if (known && fabs((double)own - (double)json_integer_value(known)) < SAME_CLOCK_NS)
      own = json_integer_value(known);
    else if (!known)
      (void)json_object_set_new(hosts, json_string_value(name), json_integer(own));
    offsets[i] = own;
    json_decref(name);
  }
  json_decref(hosts);
  return offsets;
}

/* Time of day of the first lifetime: the zero of the trace. */
static int64_t first_moment(const struct range *range, const int64_t *offsets) {
  int64_t first = INT64_MAX;
  for (size_t i = 0; i < range->count; i++) {
    int64_t post = range->reports[i].digest->first_post_ns;
    if (post && rp__moment(post, offsets[i]) < first) first = rp__moment(post, offsets[i]);
  }
  return first == INT64_MAX ? 0 : first;
}

struct writer {
  struct rp__stream stream;
  struct rp__trace trace;
  size_t events, lifetimes_out, processes_cut;
};

/* ---- what fits ---- */

static size_t sum_if_each_had(const struct range *range, size_t most) {
  size_t sum = 0;
  for (size_t i = 0; i < range->count; i++)
    sum += range->reports[i].digest->lifetimes < most ? range->reports[i].digest->lifetimes : most;
  return sum;
}

/* The largest number that each process can have. */
static size_t even_share(const struct range *range, size_t lifetimes_most) {
  size_t fits = 0, beyond = lifetimes_most + 1;
  if (sum_if_each_had(range, SIZE_MAX) <= lifetimes_most) return SIZE_MAX;
  while (beyond - fits > 1) {
    size_t middle = fits + (beyond - fits) / 2;
    if (sum_if_each_had(range, middle) <= lifetimes_most)
      fits = middle;
    else
      beyond = middle;
  }
  return fits;
}

/* ---- writing ---- */

static void write_event(struct writer *w, json_t *event) {
  rp__stream_raw(&w->stream, w->events++ ? ",\n" : "\n");
  rp__stream_json(&w->stream, event);
}

static void write_metadata(struct writer *w, const char *what, const char *member, json_t *value) {
  write_event(w, json_pack("{s:s, s:s, s:i, s:i, s:{s:o}}", "ph", "M", "name", what, "pid", w->trace.pid,
                           "tid", 0, "args", member, value));
}

static void write_process_name(struct writer *w, const json_t *report) {
  char rank[64], process[64], name[160];
  rp__format_process(report, rank, process, sizeof rank);
  snprintf(name, sizeof name, "rank %s (%s)", rank, process);
  write_metadata(w, "process_name", "name", rp__json_text(name));
  write_metadata(w, "process_sort_index", "sort_index", json_integer(w->trace.pid));
}

/* Microseconds, as the format has them; the nanoseconds are behind the point. */
static void write_events(struct writer *w) {
  struct rp__trace *trace = &w->trace;
  for (size_t i = 0; i < trace->count; i++) {
    json_t *json = json_incref(trace->events[i].json);
    if (json_object_set_new(json, "pid", json_integer(trace->pid)) != 0 ||
        json_object_set_new(json, "ts", json_real((double)trace->events[i].at_ns / 1e3)) != 0)
      w->stream.failed = true;
    write_event(w, json);
  }
}

static void write_report(struct writer *w, const json_t *report, size_t most) {
  size_t left_out = rp__trace_make(&w->trace, report, most);
  w->lifetimes_out += left_out;
  w->processes_cut += left_out > 0;
  write_process_name(w, report);
  write_events(w);
  w->stream.failed |= w->trace.failed;
  rp__trace_clear(&w->trace);
}

/* What somebody who looks at a trace that was cut has to know. */
static void write_cut(struct writer *w) {
  char text[200];
  if (!w->lifetimes_out) return;
  snprintf(text, sizeof text,
           "CUT: the oldest lifetimes, %zu in %zu processes, are left out, also of the counters "
           "(recvpool report --trace-lifetimes)",
           w->lifetimes_out, w->processes_cut);
  write_event(w, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:s}", "ph", "i", "cat", "cut", "name", text,
                           "pid", 0, "tid", 0, "ts", 0.0, "s", "g"));
}

/* What the file says of itself. */
static void write_end(struct writer *w, const struct rp_read_set *set, size_t job, int64_t zero) {
  char title[256];
  bool all = job == SIZE_MAX;
  if (!all) rp_report_title(set, job, title, sizeof title);
  rp__stream_raw(&w->stream, "\n]");
  rp__stream_member(&w->stream, false, "otherData",
                    json_pack("{s:s, s:o, s:o, s:s, s:f, s:I, s:I}", "recvpool", RECVPOOL_VERSION, "job",
                              all ? json_null() : rp__json_text(title), "job_number",
                              all ? json_null() : json_integer((json_int_t)rp_report_number(set, job)),
                              "clock", "microseconds since zero_unix_seconds; exact within a host",
                              "zero_unix_seconds", (double)zero / 1e9, "lifetimes_left_out",
                              (json_int_t)w->lifetimes_out, "processes_cut", (json_int_t)w->processes_cut));
  rp__stream_raw(&w->stream, "}\n");
}

size_t rp__report_trace_job(const struct rp_read_set *set) {
  for (size_t job = set->job_count; job-- > 0;)
    for (size_t i = set->job_first[job]; i < set->job_first[job + 1]; i++)
      if (set->reports[i].digest->lifetimes) return job;
  return set->job_count - 1;
}

bool rp__report_write_trace(struct rp_read_set *set, size_t job, size_t lifetimes_most, FILE *out) {
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  const struct range range = {set->reports + first, end - first};
  struct writer w = {.stream = {.file = out, .flags = JSON_REAL_PRECISION(15)},
                     .trace = {.next_tid = (json_int_t)range.count + 1, .next_id = 1}};
  size_t most = even_share(&range, lifetimes_most);
  int64_t *offsets = offsets_of(&range);
  if (!offsets) return false;
  int64_t zero = first_moment(&range, offsets);
  rp__stream_raw(&w.stream, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  for (size_t i = 0; i < range.count && !w.stream.failed; i++) {
    json_t *report = rp_read_load(set, first + i);
    if (!report) continue;
    w.trace.pid = (int)i + 1; /* 0 is nobody */
    w.trace.offset_ns = offsets[i];
    w.trace.zero_ns = zero;
    write_report(&w, report, most);
    json_decref(report);
  }
  write_cut(&w);
  write_end(&w, set, job, zero);
  free(offsets);
  return rp__stream_end(&w.stream);
}
