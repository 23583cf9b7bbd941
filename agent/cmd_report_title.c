/* Which job is which: what tells the jobs of a folder apart, and the choice of one of them. */
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"

/* Of a command line; a heading is one line. */
#define COMMAND_BYTES 72

/* How much of a text has room: whole words where the first one fits, else whole characters. */
static size_t fitting(const char *text, size_t most) {
  size_t length = strlen(text), cut = most;
  if (length <= most) return length;
  while (cut > 0 && text[cut] != ' ')
    cut--;
  if (cut > 0) return cut;
  while (most > 0 && ((unsigned char)text[most] & 0xc0) == 0x80)
    most--;
  return most;
}

/* The program without its folders, and its arguments as far as there is room. */
static void format_command(const char *command, char *out, size_t out_size) {
  size_t program = strcspn(command, " ");
  const char *start = command;
  for (size_t i = 0; i < program; i++)
    if (command[i] == '/' && i + 1 < program) start = command + i + 1;
  size_t length = strlen(start), most = fitting(start, COMMAND_BYTES);
  snprintf(out, out_size, "%.*s%s", (int)most, start, most < length ? " …" : length ? "" : "?");
  rp_cmd_plain(out);
}

/* "HOST", or "HOST and 3 others". */
static void format_hosts(const struct rp_read_set *set, size_t first, size_t end, char *out,
                         size_t out_size) {
  json_t *seen = json_object();
  char host[64];
  for (size_t i = first; i < end; i++) {
    json_t *name = rp__json_text(set->reports[i].digest->host);
    (void)json_object_set(seen, json_string_value(name), name);
    json_decref(name);
  }
  size_t others = json_object_size(seen) ? json_object_size(seen) - 1 : 0;
  rp__plain_text(set->reports[first].digest->host, host, sizeof host);
  if (others)
    snprintf(out, out_size, "%s and %zu other%s", host, others, others == 1 ? "" : "s");
  else
    snprintf(out, out_size, "%s", host[0] ? host : "?");
  json_decref(seen);
}

static const char *manner_of(const struct rp_read_set *set, size_t first, size_t end) {
  size_t enforcing = 0, outside = 0;
  for (size_t i = first; i < end; i++) {
    enforcing += set->reports[i].digest->enforced.processes;
    outside += set->reports[i].digest->summary.outside;
  }
  if (enforcing) return enforcing < end - first ? "enforced in part" : "enforced";
  return outside ? "observed from outside" : "observed";
}

void rp_report_title(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  char command[COMMAND_BYTES + 16], hosts[128];
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  format_command(set->reports[first].digest->command, command, sizeof command);
  format_hosts(set, first, end, hosts, sizeof hosts);
  snprintf(out, out_size, "%s on %s, %s", command, hosts, manner_of(set, first, end));
}

size_t rp_report_number(const struct rp_read_set *set, size_t job) {
  return set->jobs_before + job + 1;
}

void rp__job_heading_print(const struct rp_read_set *set, size_t job, FILE *out) {
  char title[256], when[32];
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  double begun = set->reports[first].digest->start_unix_seconds;
  for (size_t i = first; i < end; i++)
    if (set->reports[i].digest->start_unix_seconds < begun)
      begun = set->reports[i].digest->start_unix_seconds;
  rp_report_title(set, job, title, sizeof title);
  fprintf(out, "job %zu: %zu process%s from %s: %s\n", rp_report_number(set, job), end - first,
          end - first == 1 ? "" : "es", rp__format_time(begun, when, sizeof when), title);
}

rp_status rp_read_choose_job(struct rp_read_set *set, size_t job) {
  size_t *bounds = calloc(2, sizeof *bounds);
  if (!bounds) return RP_ERROR_NO_MEMORY;
  size_t first = set->job_first[job], end = set->job_first[job + 1];
  for (size_t i = 0; i < set->count; i++)
    if (i < first || i >= end) rp__report_fini(&set->reports[i]);
  memmove(set->reports, set->reports + first, (end - first) * sizeof *set->reports);
  for (size_t i = 0; i < end - first; i++)
    set->reports[i].job = 0;
  set->count = bounds[1] = end - first;
  set->job_count = 1;
  set->jobs_before += job;
  free(set->job_first);
  set->job_first = bounds;
  return RP_OK;
}
