/* Plans from files: torch's schedules, and reports of observed runs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"
#include "agent/plan_command.h"

/* --- schedule files --- */

#define MOST_FILE_BYTES ((size_t)4 << 30)

/* Reads to the end, or a little beyond the first NUL: no schedule has one, and the reader of schedules says
 * so. */
static char *read_file(const char *path, size_t *length) {
  FILE *file = fopen(path, "re");
  char *text = NULL;
  size_t used = 0, capacity = 0, got = 0;
  bool binary = false;
  if (!file) return NULL;
  do {
    used += got;
    if (used == capacity) {
      capacity = capacity ? capacity * 2 : (size_t)1 << 16;
      char *grown = capacity > MOST_FILE_BYTES ? NULL : realloc(text, capacity);
      if (!grown) {
        errno = capacity > MOST_FILE_BYTES ? EFBIG : ENOMEM;
        goto failed;
      }
      text = grown;
    }
    got = binary ? 0 : fread(text + used, 1, capacity - used, file);
    binary = got && memchr(text + used, 0, got);
  } while (got > 0);
  if (ferror(file)) goto failed;
  fclose(file);
  *length = used;
  return text;
failed:
  got = (size_t)errno;
  free(text);
  fclose(file);
  errno = (int)got;
  return NULL;
}

rp_status rp_plan_read_text(const char *path, char **text, size_t *length, char *message,
                            size_t message_size) {
  *text = read_file(path, length);
  if (*text) return RP_OK;
  snprintf(message, message_size, "%s: cannot be read: %s", path, strerror(errno));
  return RP_ERROR_IO;
}

bool rp_plan_is_saved(const char *text, size_t length) {
  size_t i = 0;
  while (i < length && strchr(" \t\r\n", text[i]) && text[i])
    i++;
  return i < length && text[i] == '{';
}

rp_status rp_plan_from_text(const char *path, const char *text, size_t length,
                            const struct rp_plan_options *options, struct rp_plan **out, char *message,
                            size_t message_size) {
  if (rp_plan_is_saved(text, length)) {
    snprintf(message, message_size,
             "%s: a JSON document is no schedule file; a saved plan is for --compare and for recvpool run "
             "--plan, reports are for --from-report",
             path);
    return RP_ERROR_INVALID;
  }
  int prefix = snprintf(message, message_size, "%s: ", path);
  size_t used = prefix > 0 && (size_t)prefix < message_size ? (size_t)prefix : 0;
  return rp_plan_create_csv(text, length, options, out, message + used, message_size - used);
}

/* --- reports --- */

struct observed {
  size_t just_in_time, other_style; /* channels */
  bool gradients;                   /* some were seen */
  bool uneven;                      /* the last step was not like those before it */
  struct rp_plan_item *items;
  size_t count, capacity;
  int32_t stages, microbatches;
  bool unsure;                /* how often messages are read is not known, or guessed */
  size_t channels, undecided; /* of these, seen for too few steps */
  bool small;                 /* a process had receives, all of them below the threshold */
  bool received;              /* a process had others, of which no step is known */
  bool several_devices;       /* a process received on more than one */
  char passive[200];          /* why an agent did nothing, or empty */
};

/* The reports of a set that are of ranks. */
struct members {
  size_t *at; /* indices */
  size_t count;
};

static bool push(struct observed *o, const struct rp_plan_item *item) {
  if (o->count == o->capacity) {
    size_t capacity = o->capacity ? o->capacity * 2 : 256;
    struct rp_plan_item *grown = realloc(o->items, capacity * sizeof(*grown));
    if (!grown) return false;
    o->items = grown;
    o->capacity = capacity;
  }
  o->items[o->count++] = *item;
  return true;
}

static enum rp_direction direction_of(const json_t *channel) {
  const char *name = json_string_value(json_object_get(channel, "direction"));
  for (int d = RP_DIRECTION_ACTIVATION; name && d <= RP_DIRECTION_GRADIENT; d++)
    if (strcmp(name, rp_direction_name((enum rp_direction)d)) == 0) return (enum rp_direction)d;
  return RP_DIRECTION_UNKNOWN;
}

/* The lifetimes of one channel as items of `stage`. Their times are the numbers of the calls in the process.
 */
static rp_status add_channel(struct observed *o, const json_t *channel, int32_t rank, int32_t stage,
                             uint32_t source) {
  const json_t *lifetimes = json_object_get(channel, "lifetimes");
  for (size_t i = 0; i < json_array_size(lifetimes); i++) {
    const json_t *l = json_array_get(lifetimes, i);
    uint64_t begin = rp__count_of(l, "posted_sequence"), end = rp__count_of(l, "last_access_sequence");
    uint64_t microbatch = rp__count_of(l, "microbatch"), accesses = rp__count_of(l, "accesses");
    if (microbatch >= (1 << 24)) return RP_ERROR_LIMIT;
    if ((int32_t)microbatch >= o->microbatches) o->microbatches = (int32_t)microbatch + 1;
    const struct rp_plan_item item = {.interval = {begin, end > begin ? end : begin},
                                      .bytes = rp__count_of(channel, "buffer_bytes"),
                                      .rank = rank,
                                      .stage = stage,
                                      .microbatch = (int32_t)microbatch,
                                      .direction = direction_of(channel),
                                      .source = source,
                                      .accesses = accesses < UINT32_MAX ? (uint32_t)accesses : 0};
    if (!push(o, &item)) return RP_ERROR_NO_MEMORY;
  }
  return RP_OK;
}

/* Step of the channel's lifetimes, and how often its messages were read at most. */
static json_int_t last_step(const json_t *channel, uint64_t *accesses) {
  const json_t *lifetimes = json_object_get(channel, "lifetimes");
  *accesses = 0;
  for (size_t i = 0; i < json_array_size(lifetimes); i++) {
    uint64_t read = rp__count_of(json_array_get(lifetimes, i), "accesses");
    if (read > *accesses) *accesses = read;
  }
  const json_t *step = json_object_get(json_array_get(lifetimes, 0), "step");
  return json_is_integer(step) ? json_integer_value(step) : -1;
}

/* Was the last step an evaluation, or part of a change? Then what it says of accesses is not what a training
 * step does, and would call messages done with that are not. */
static void look_for_uneven_steps(struct observed *o, const json_t *channels) {
  json_int_t step = -1;
  for (size_t i = 0; i < json_array_size(channels); i++) {
    const json_t *channel = json_array_get(channels, i), *decision = json_object_get(channel, "decision");
    const char *reason = json_string_value(json_object_get(decision, "reason"));
    uint64_t accesses;
    json_int_t last = last_step(channel, &accesses);
    if (last < 0) continue;
    if (step < 0) step = last;
    o->uneven |= last != step || accesses < rp__count_of(channel, "accesses_most") ||
                 (reason && strcmp(reason, rp_reason_name(RP_REASON_UNSTABLE_PATTERN)) == 0);
    o->gradients |= direction_of(channel) == RP_DIRECTION_GRADIENT;
  }
}

/* Number of the sender of channel `index`: that of the first channel of the same peer and communicator. */
static uint32_t source_of(const json_t *channels, size_t index) {
  const json_t *channel = json_array_get(channels, index), *peer = json_object_get(channel, "peer");
  for (size_t i = 0; json_is_integer(peer) && i < index; i++) {
    const json_t *other = json_array_get(channels, i);
    if (json_equal(json_object_get(other, "peer"), peer) &&
        json_equal(json_object_get(other, "communicator"), json_object_get(channel, "communicator")))
      return (uint32_t)i;
  }
  return (uint32_t)index;
}

/* Whether a report's accesses are no evidence to plan by: too few of them and a plan has too few slots. */
static bool is_unsure(const json_t *report) {
  const json_t *entry;
  size_t i;
  json_array_foreach(json_object_get(report, "channels"), i,
                     entry) if (json_is_true(json_object_get(entry, "estimate"))) return true;
  json_array_foreach(json_object_get(report, "evidence"), i, entry) {
    const char *name = json_string_value(json_object_get(entry, "name"));
    bool active = json_is_true(json_object_get(entry, "active"));
    if (active && name && strcmp(name, "uprobes") == 0) return true;
  }
  return false;
}

static void count_undecided(struct observed *o, const json_t *channels) {
  for (size_t i = 0; i < json_array_size(channels); i++) {
    const json_t *decision = json_object_get(json_array_get(channels, i), "decision");
    o->channels++;
    o->undecided += strcmp(rp__text_of(decision, "reason", ""), rp_reason_name(RP_REASON_TOO_FEW_STEPS)) == 0;
  }
}

static void look_at_devices(struct observed *o, const json_t *channels) {
  const json_t *first = json_object_get(json_array_get(channels, 0), "device");
  for (size_t i = 1; json_is_integer(first) && i < json_array_size(channels); i++) {
    const json_t *device = json_object_get(json_array_get(channels, i), "device");
    o->several_devices |= json_is_integer(device) && !json_equal(device, first);
  }
}

/* Stages get numbers in the order of ranks and, within one, of the tracker's ordinals; the two directions of
 * an ordinal are one stage. A third channel of an ordinal (a second tensor) is a stage of its own here, since
 * it is a pool of its own. */
static rp_status add_process(struct observed *o, const json_t *report, int32_t rank) {
  const json_t *channels = json_object_get(report, "channels");
  size_t count = json_array_size(channels);
  uint64_t *key =
      malloc((2 * count + 1) * sizeof(*key)); /* ordinal and direction taken, by stage of this process */
  rp_status status = key ? RP_OK : RP_ERROR_NO_MEMORY;
  int32_t first = o->stages;
  unsigned *directions = calloc(count + 1, sizeof(*directions));
  look_for_uneven_steps(o, channels);
  count_undecided(o, channels);
  look_at_devices(o, channels);
  if (!directions) status = RP_ERROR_NO_MEMORY;
  for (size_t i = 0; !status && i < count; i++) {
    const json_t *channel = json_array_get(channels, i);
    uint64_t ordinal = rp__count_of(channel, "stage_ordinal");
    unsigned bit =
        direction_of(channel) == RP_DIRECTION_GRADIENT ? 2 : 1; /* what is unknown shares with none */
    int32_t stage = first;
    while (stage < o->stages && (key[stage - first] != ordinal || (directions[stage - first] & bit)))
      stage++;
    if (stage == o->stages) key[o->stages++ - first] = ordinal;
    directions[stage - first] |= bit;
    const char *style = json_string_value(json_object_get(channel, "allocation_style"));
    bool just_in_time = style && strcmp(style, rp_style_name(RP_STYLE_JUST_IN_TIME)) == 0;
    *(just_in_time ? &o->just_in_time : &o->other_style) += 1;
    status = add_channel(o, channel, rank, stage, source_of(channels, i));
  }
  free(key);
  free(directions);
  return status;
}

static int compare_items(const void *left, const void *right) {
  const struct rp_plan_item *a = left, *b = right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  return (a->interval.begin > b->interval.begin) - (a->interval.begin < b->interval.begin);
}

/* Rank of a report as its launcher said it, or -1. */
static int32_t rank_of(const struct rp_read_set *set, size_t index) {
  int64_t value = set->reports[index].digest->rank;
  return value >= 0 && value < RP_PLAN_MOST_RANKS ? (int32_t)value : -1;
}

/* Whether the launcher's ranks can stand: each process has one and no two have the same. They are sorted by
 * them. */
static bool has_ranks(const struct rp_read_set *set, const struct members *members) {
  for (size_t m = 0; m < members->count; m++) {
    int32_t rank = rank_of(set, members->at[m]);
    if (rank < 0 || (m && rank == rank_of(set, members->at[m - 1]))) return false;
  }
  return true;
}

/* Launchers and helpers count nowhere: they have no rank, or one that they got themselves from what started
 * them (Slurm, one for each machine), and that another process has, with a communicator. */
static bool find_members(const struct rp_read_set *set, struct members *out) {
  bool *taken = calloc(RP_PLAN_MOST_RANKS, sizeof(*taken));
  *out = (struct members){.at = malloc((set->count + 1) * sizeof(*out->at))};
  for (size_t i = 0; taken && i < set->count; i++)
    if (!set->reports[i].digest->helper && rank_of(set, i) >= 0) taken[rank_of(set, i)] = true;
  for (size_t i = 0; taken && out->at && i < set->count; i++) {
    int32_t rank = rank_of(set, i);
    if (!set->reports[i].digest->helper || (rank >= 0 && !taken[rank])) out->at[out->count++] = i;
  }
  bool whole = taken && out->at;
  free(taken);
  return whole;
}

static void take_note(const struct rp_read_set *set, const struct members *members, const struct observed *o,
                      int32_t ranks, bool numbered, struct rp_plan_observation *out) {
  uint64_t world = (uint64_t)set->reports[members->at[0]].digest->world_size, all = world;
  if (all < (uint64_t)ranks) all = (uint64_t)ranks;
  *out = (struct rp_plan_observation){.by_receipt = o->just_in_time > 0};
  if (numbered && world <= INT32_MAX) out->world_size = (int32_t)world;
  int used = 0;
  if (members->count < all)
    used = snprintf(out->note, sizeof(out->note),
                    "Reports of %zu of %llu ranks: what the others receive is not counted. ", members->count,
                    (unsigned long long)all);
  const char *style =
      !o->just_in_time ? ""
      : !o->other_style
          ? "The run allocates its receive buffers just in time: it holds no more than the depth, so there "
            "is nothing to pool and the savings are those of a run that preallocates."
          : "Part of the run allocates its receive buffers just in time: there the savings are those of a "
            "run that preallocates.";
  const char *reads =
      !o->gradients
          ? "The run did not train: how often training reads a buffer is not known, and enforcing by "
            "this plan shares memory from the third step on. "
      : o->uneven
          ? "The last step of the run is not like those before it (an evaluation?): how often training "
            "reads a buffer is not known, and enforcing by this plan shares memory from the third step "
            "on; let the reports end in training steps. "
          : "";
  used += snprintf(out->note + used, sizeof(out->note) - (size_t)used, "%s", reads);
  snprintf(out->note + used, sizeof(out->note) - (size_t)used, "%s", style);
  size_t length = strlen(out->note);
  if (length && out->note[length - 1] == ' ') out->note[length - 1] = 0;
}

/* Why there is nothing to plan by. */
static void explain_nothing(const struct observed *o, const char *path, char *message, size_t message_size) {
  if (o->channels || o->received)
    snprintf(message, message_size,
             "%s: the reports hold no complete step; let the run go on for a few steps", path);
  else if (o->small)
    snprintf(message, message_size,
             "%s: only receives below --min-bytes were seen; to have them counted, run it with a lower "
             "--min-bytes",
             path);
  else if (o->passive[0])
    snprintf(message, message_size, "%s: no receives were seen, since the agent did nothing: %s", path,
             o->passive);
  else
    snprintf(message, message_size,
             "%s: no receives were seen; let the job train for two steps, and if it does already, recvpool "
             "doctor and the notes of recvpool report say what is missing",
             path);
}

/* Whether there is what a comparison needs, or `to_plan` a plan. */
static rp_status check_observed(const struct observed *o, bool to_plan, const char *path, char *message,
                                size_t message_size) {
  if (to_plan && o->undecided) {
    snprintf(message, message_size,
             "%s: %zu of %zu channels were seen for fewer than two whole steps (too_few_steps), so what they "
             "need is not decided; let the run go on for two more steps",
             path, o->undecided, o->channels);
    return RP_ERROR_NOT_FOUND;
  }
  if (to_plan && o->several_devices) {
    snprintf(message, message_size,
             "%s: a process received on several devices, and a plan has one device for each rank; enforce it "
             "without a plan",
             path);
    return RP_ERROR_INVALID;
  }
  if (!o->count) {
    explain_nothing(o, path, message, message_size);
    return RP_ERROR_NOT_FOUND;
  }
  if (!o->unsure) return RP_OK;
  snprintf(
      message, message_size,
      "%s: the reports do not tell for certain how often each message is read (seen from outside, without "
      "CUPTI, or nothing was seen to read some); let some steps run under recvpool run",
      path);
  return RP_ERROR_INVALID;
}

/* What the report says of enforcing the job. */
static void take_job(const struct rp_read_set *set, size_t job, struct rp_plan_observation *out) {
  struct rp__enforced sum;
  struct rp__summary summary;
  rp__enforced_sum(set, job, &sum);
  rp__summary_sum(set, job, &summary);
  out->piece_bytes = summary.piece_bytes;
  if (sum.violations)
    out->caution = "do not enforce this plan as it is: memory was reused unsafely in the run that it is made "
                   "of; recvpool report names the violations";
  else if (sum.would_miss)
    out->caution = "do not enforce this plan as it is: in the run that it is made of, buffers are used when "
                   "their data would be gone, and enforcing would notice that too late; recvpool report "
                   "names both sides";
}

static void look_for_cause(struct observed *o, const json_t *report) {
  const char *passive = json_string_value(json_object_get(report, "passive_reason"));
  if (passive && !o->passive[0]) rp__plain_text(passive, o->passive, sizeof(o->passive));
  const json_t *kinds = json_object_get(json_object_get(report, "events"), "by_kind");
  bool small = rp__small_receives(report) > 0;
  o->small |= small;
  o->received |= !small && rp__count_of(kinds, "recv") > 0;
}

static rp_status add_member(struct observed *o, struct rp_read_set *set, size_t index, int32_t rank) {
  json_t *report = rp_read_load(set, index);
  rp_status status = report ? add_process(o, report, rank) : RP_ERROR_IO;
  o->unsure |= report && is_unsure(report);
  look_for_cause(o, report);
  json_decref(report);
  return status;
}

static rp_status add_members(struct observed *o, struct rp_read_set *set, const struct members *members,
                             bool numbered, int32_t *ranks) {
  rp_status status = members->count <= RP_PLAN_MOST_RANKS ? RP_OK : RP_ERROR_LIMIT;
  *ranks = 0;
  for (size_t m = 0; !status && m < members->count; m++) {
    int32_t rank = numbered ? rank_of(set, members->at[m]) : (int32_t)m;
    *ranks = rank + 1;
    status = add_member(o, set, members->at[m], rank);
  }
  return !status && (uint64_t)o->stages * (uint64_t)o->microbatches > RP_PLAN_MOST_PAIRS ? RP_ERROR_LIMIT
                                                                                         : status;
}

static rp_status plan_members(struct rp_read_set *set, const struct members *members, const char *path,
                              int32_t wanted, const struct rp_plan_options *options, struct rp_plan **out,
                              struct rp_plan_observation *observation, char *message, size_t message_size) {
  struct observed o = {0};
  bool numbered = members->count != (size_t)wanted && has_ranks(set, members);
  int32_t ranks;
  rp_status status = add_members(&o, set, members, numbered, &ranks);
  if (status)
    snprintf(message, message_size, "%s: %s", path,
             status == RP_ERROR_LIMIT ? "more ranks, channels or microbatches than any run has"
                                      : rp_status_text(status));
  else
    status = check_observed(&o, wanted == 0, path, message, message_size);
  if (status) {
    free(o.items);
    return status;
  }
  for (size_t i = 0; i < o.count && (o.uneven || !o.gradients); i++)
    o.items[i].accesses = 0;
  qsort(o.items, o.count, sizeof(*o.items), compare_items);
  take_note(set, members, &o, ranks, numbered, observation);
  take_job(set, set->reports[members->at[0]].job, observation);
  status = rp__plan_build(o.items, o.count, ranks, o.stages, o.microbatches, options, out);
  if (status)
    snprintf(message, message_size, "%s: %s", path,
             status == RP_ERROR_LIMIT ? "the sizes are too large to add up" : rp_status_text(status));
  return status;
}

/* A launcher without recvpool run stands as a job of its own. Members are sorted by job. */
static bool is_one_job(const struct rp_read_set *set, const struct members *members) {
  return set->reports[members->at[0]].job == set->reports[members->at[members->count - 1]].job;
}

rp_status rp_plan_from_set(struct rp_read_set *set, const char *path, int32_t ranks,
                           const struct rp_plan_options *options, struct rp_plan **out,
                           struct rp_plan_observation *observation, char *message, size_t message_size) {
  struct members members;
  rp_status status = find_members(set, &members) ? RP_OK : RP_ERROR_NO_MEMORY;
  if (status) {
    snprintf(message, message_size, "%s: %s", path, rp_status_text(status));
  } else if (!set->count) {
    snprintf(message, message_size, "%s: no report found there", path);
    status = RP_ERROR_NOT_FOUND;
  } else if (!members.count) {
    snprintf(message, message_size,
             "%s: no process there has a rank, a communicator or receives: launchers or helpers, which are "
             "no ranks; is the agent in the job's other processes?",
             path);
    status = RP_ERROR_NOT_FOUND;
  } else if (!is_one_job(set, &members)) {
    snprintf(message, message_size,
             "%s: reports of %zu jobs, and a plan is of one: recvpool report lists them, and recvpool report "
             "--job N --plan FILE takes the N-th, or the last one by --job last",
             path, set->job_count);
    status = RP_ERROR_INVALID;
  } else {
    status = plan_members(set, &members, path, ranks, options, out, observation, message, message_size);
  }
  free(members.at);
  return status;
}

rp_status rp_plan_from_reports(const char *path, int32_t ranks, const struct rp_plan_options *options,
                               struct rp_plan **out, struct rp_plan_observation *observation, char *message,
                               size_t message_size) {
  struct rp_read_set set = {
      .subcommand = "plan", .lean = true, .keep_texts = true, .progress = isatty(STDERR_FILENO) == 1};
  rp_status status = rp_read_add(&set, path);
  if (!status) status = rp_read_finish(&set);
  if (status)
    snprintf(message, message_size, "%s: %s", path, rp_status_text(status));
  else
    status = rp_plan_from_set(&set, path, ranks, options, out, observation, message, message_size);
  rp_read_fini(&set);
  return status;
}
