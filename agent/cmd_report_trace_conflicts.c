/* Violations, and what was prevented, as instants of a trace. A report has no time of them, but the place of
 * each in the order of calls; lifetimes have both, so the last of their moments before it tells when it was,
 * nearly. */
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_text.h"
#include "agent/cmd_report_trace.h"

/* Drawn of one report; an agent keeps fewer. */
#define MOST_CONFLICTS 4096

struct moment {
  uint64_t sequence;
  int64_t at_ns;
};

static int by_sequence(const void *a_pointer, const void *b_pointer) {
  const struct moment *a = a_pointer, *b = b_pointer;
  if (a->sequence != b->sequence) return a->sequence < b->sequence ? -1 : 1;
  return (a->at_ns > b->at_ns) - (a->at_ns < b->at_ns);
}

/* Moments of a report's lifetimes, by sequence; owned by the caller, NULL without memory. */
static struct moment *moments_of(const json_t *report, size_t *count) {
  static const char *const names[] = {"posted", "first_access", "last_access", "released"};
  struct moment *moments = malloc((4 * rp__trace_lifetimes(report) + 1) * sizeof *moments);
  size_t c, i, most = 4 * rp__trace_lifetimes(report);
  json_t *channel, *life;
  char key[64];
  *count = 0;
  json_array_foreach(json_object_get(report, "channels"), c, channel) {
    json_array_foreach(json_object_get(channel, "lifetimes"), i, life) {
      for (size_t n = 0; moments && n < sizeof names / sizeof names[0] && *count < most; n++) {
        snprintf(key, sizeof key, "%s_sequence", names[n]);
        uint64_t sequence = rp__count_of(life, key);
        snprintf(key, sizeof key, "%s_monotonic_ns", names[n]);
        int64_t at_ns = (int64_t)rp__count_of(life, key);
        if (sequence && at_ns) moments[(*count)++] = (struct moment){sequence, at_ns};
      }
    }
  }
  if (moments) qsort(moments, *count, sizeof *moments, by_sequence);
  return moments;
}

/* The last moment that is not after `sequence`, or the first; `inside`: whether the moments reach around it.
 */
static int64_t time_of(const struct moment *moments, size_t count, uint64_t sequence, bool *inside) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (moments[middle].sequence <= sequence)
      low = middle + 1;
    else
      high = middle;
  }
  *inside = low > 0 && low < count;
  return count == 0 ? 0 : moments[low ? low - 1 : 0].at_ns;
}

static json_t *side_of(const json_t *side) {
  static const char *const members[] = {"call",   "function", "microbatch", "step",
                                        "stream", "buffer",   "address"};
  json_t *out = json_object();
  for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
    json_t *value = json_object_get(side, members[i]);
    if (value && !json_is_object(value) && !json_is_array(value))
      (void)json_object_set(out, members[i], value);
  }
  return out;
}

static void put_conflict(struct rp__trace *trace, const json_t *conflict, bool enforced, int64_t at_ns,
                         bool inside) {
  bool prevented = json_is_true(json_object_get(conflict, "prevented"));
  const char *what = enforced ? (prevented ? "prevented" : "VIOLATION")
                              : (prevented ? "would be prevented" : "would be a violation");
  char name[100];
  snprintf(name, sizeof name, "%s: %.40s", what, rp__text_of(conflict, "kind", "?"));
  rp__trace_put(trace, at_ns,
                json_pack("{s:s, s:s, s:s, s:o, s:I, s:{s:O?, s:s, s:o, s:o}}", "ph", "i", "s", "p", "cat",
                          prevented ? "prevented" : "violation", "name", rp__json_text(name), "tid",
                          (json_int_t)0, "args", "slot", json_object_get(conflict, "slot"), "time",
                          inside ? "of the last call before it that is known" : "not known; another step",
                          "earlier", side_of(json_object_get(conflict, "earlier")), "later",
                          side_of(json_object_get(conflict, "later"))));
}

void rp__trace_conflicts(struct rp__trace *trace, const json_t *report) {
  const json_t *enforcement = json_object_get(report, "enforcement");
  bool enforced = strcmp(rp__text_of(enforcement, "mode", ""), "enforce") == 0, inside;
  size_t d, i, count, put = 0;
  json_t *device, *conflict;
  struct moment *moments = moments_of(report, &count);
  trace->failed |= !moments;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    json_array_foreach(json_object_get(json_object_get(device, "conflicts"), "kept"), i, conflict) {
      if (trace->failed || put++ >= MOST_CONFLICTS) break;
      uint64_t sequence = rp__count_of(json_object_get(conflict, "later"), "sequence");
      int64_t at_ns = time_of(moments, count, sequence, &inside);
      put_conflict(trace, conflict, enforced, at_ns ? at_ns : INT64_MIN, inside);
    }
  }
  free(moments);
}
