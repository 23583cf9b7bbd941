// Command line of the trainer.
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_types.h"

enum {
  KEY_RECOMPUTE = 256,
  KEY_BACKWARD_THREAD,
  KEY_DRIVER_API,
  KEY_BREAK_WAIT,
  KEY_OWN_STREAM,
  KEY_TWO_COMMUNICATORS,
  KEY_PROBE,
  KEY_MISTAKE,
  KEY_MISTAKE_STEP,
  KEY_BATCH,
  KEY_WIDTH,
  KEY_HIDDEN,
  KEY_SEED,
  KEY_TRUTH_DIR,
  KEY_RENDEZVOUS,
  KEY_SWITCH_SCHEDULE,
  KEY_SWITCH_MICROBATCHES,
  KEY_EVAL_EVERY,
  KEY_EVAL_FIRST,
  KEY_EVAL_COUNT,
  KEY_REBUILD_AT,
  KEY_CAPTURE_AT,
  KEY_SEGMENT_BLOCKS,
  KEY_LOOKALIKE,
  KEY_LOOKALIKE_TOUCH,
  KEY_LOOKALIKE_COUNT,
  KEY_IDENTITY,
  KEY_RANDOM,
  KEY_UNGUARDED_POOL,
  KEY_PRINT_SCHEDULE
};

#define OVERSIZE_BYTES 4096u

static const struct argp_option option_table[] = {
    {"schedule", 's', "NAME|FILE", 0, "gpipe, 1f1b (default), interleaved_1f1b, looped_bfs, or a CSV file",
     0},
    {"stages", 'S', "COUNT", 0, "ranks, each a process (default 4, or as the file says)", 0},
    {"chunks", 'V', "COUNT", 0, "stages per rank (default 2 for interleaved and looped schedules, else 1)",
     0},
    {"microbatches", 'N', "COUNT", 0, "microbatches per step (default 8)", 0},
    {"steps", 'T', "COUNT", 0, "steps (default 3)", 0},
    {"switch-schedule", KEY_SWITCH_SCHEDULE, "NAME|FILE@STEP", 0, "another schedule from that step on", 0},
    {"switch-microbatches", KEY_SWITCH_MICROBATCHES, "COUNT@STEP", 0, "another count from that step on", 0},
    {"eval-every", KEY_EVAL_EVERY, "STEPS", 0, "a forward-only pass after every so many steps", 0},
    {"eval-first", KEY_EVAL_FIRST, "COUNT", 0, "so many forward-only passes before the first step", 0},
    {"eval-count", KEY_EVAL_COUNT, "COUNT", 0, "passes of each evaluation after a step (default 1)", 0},
    {"rebuild-at", KEY_REBUILD_AT, "STEP", 0, "free all stages before that step and build them again", 0},
    {"capture-at", KEY_CAPTURE_AT, "STEP", 0,
     "capture that step in a CUDA graph, and replay it from then on (from 1)", 0},
    {"allocation", 'a', "HOW", 0,
     "receive buffers: preallocated (default), just_in_time, or cached (recycled with everything of their "
     "size)",
     0},
    {"segment-blocks", KEY_SEGMENT_BLOCKS, "COUNT", 0, "recycled blocks in one allocation (default 1)", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0, "run the forward again in the backward instead of saving", 0},
    {"backward-thread", KEY_BACKWARD_THREAD, NULL, 0, "run backward actions on a host thread of their own",
     0},
    {"identity-stage", KEY_IDENTITY, "STAGE", 0, "this stage passes on what it receives, both ways", 0},
    {"lookalike", KEY_LOOKALIKE, "WHERE[,WHERE]", 0,
     "buffers of a message's size that are not received into: before, between or after the receive buffers, "
     "or "
     "activations; a library whose calls cannot be interposed uses them",
     0},
    {"lookalike-count", KEY_LOOKALIKE_COUNT, "COUNT", 0, "how many at each place (default 2)", 0},
    {"lookalike-touch", KEY_LOOKALIKE_TOUCH, "WHEN", 0, "now (when allocated, default) or late (first step)",
     0},
    {"message-bytes", 'm', "BYTES", 0, "size of a transfer, with KiB, MiB or GiB (default: what is needed)",
     0},
    {"batch", KEY_BATCH, "ROWS", 0, "rows of a microbatch (default 4)", 0},
    {"width", KEY_WIDTH, "COUNT", 0, "width of a stage's input (default 32)", 0},
    {"hidden", KEY_HIDDEN, "COUNT", 0, "width of the hidden layer (default 64)", 0},
    {"seed", KEY_SEED, "NUMBER", 0, "seed of weights and data (default 1)", 0},
    {"random-schedule", KEY_RANDOM, "SEED", 0,
     "draw a correct schedule, streams, recomputation and backward thread, and what of -S, -V, -N is not "
     "given",
     0},
    {"truth-dir", KEY_TRUTH_DIR, "DIR", 0, "write what really happened to DIR/rank-R.jsonl", 0},
    {"driver-api", KEY_DRIVER_API, NULL, 0, "use the driver instead of the runtime where both have a call",
     0},
    {"two-communicators", KEY_TWO_COMMUNICATORS, NULL, 0, "send gradients over a communicator of their own",
     0},
    {"own-stream", KEY_OWN_STREAM, NULL, 0, "compute on a created stream instead of the default stream", 0},
    {"probe", KEY_PROBE, NULL, 0, "exchange one element with both neighbours first, as torch does", 0},
    {"rendezvous", KEY_RENDEZVOUS, "FILE", 0, "be the one rank that RANK and WORLD_SIZE name; meet at FILE",
     0},
    {"mistake", KEY_MISTAKE, "NAME", 0,
     "do what is harmless only without pools: missing-wait, early-post, wrong-stream, late-read, late-send, "
     "foreign-write, unseen-write, oversize, double-free, register, ipc-export or comm-abort",
     0},
    {"mistake-step", KEY_MISTAKE_STEP, "STEP", 0, "first step with the mistake, from 0 (default 3)", 0},
    {"unguarded-pool", KEY_UNGUARDED_POOL, NULL, 0,
     "let receive buffers share memory as planned for the schedule, without any guard (simulated device "
     "only)",
     0},
    {"print-schedule", KEY_PRINT_SCHEDULE, NULL, 0, "print the first schedule as CSV and end", 0},
    {"break-wait", KEY_BREAK_WAIT, NULL, OPTION_HIDDEN, "", 0},
    {0},
};

static int64_t parse_number(struct argp_state *state, const char *text, int64_t low, int64_t high) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < low || value > high)
    argp_error(state, "'%s' is not a number from %lld to %lld", text, (long long)low, (long long)high);
  return value;
}

static uint64_t parse_bytes(struct argp_state *state, const char *text) {
  static const struct {
    const char *suffix;
    unsigned shift;
  } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno == 0 && end != text && *text != '-' && value < (1ull << 33))
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
      if (strcmp(end, units[i].suffix) == 0) return (uint64_t)value << units[i].shift;
  argp_error(state, "'%s' is not a size such as 4096, 64KiB or 1MiB", text);
  return 0;
}

// ---- words

const char *rp_mistake_name(enum rp_mistake mistake) {
  static const char *const names[RP_MISTAKE_COUNT] = {
      [RP_MISTAKE_NONE] = "none",
      [RP_MISTAKE_MISSING_WAIT] = "missing-wait",
      [RP_MISTAKE_EARLY_POST] = "early-post",
      [RP_MISTAKE_WRONG_STREAM] = "wrong-stream",
      [RP_MISTAKE_LATE_READ] = "late-read",
      [RP_MISTAKE_LATE_SEND] = "late-send",
      [RP_MISTAKE_FOREIGN_WRITE] = "foreign-write",
      [RP_MISTAKE_UNSEEN_WRITE] = "unseen-write",
      [RP_MISTAKE_OVERSIZE] = "oversize",
      [RP_MISTAKE_DOUBLE_FREE] = "double-free",
      [RP_MISTAKE_REGISTER] = "register",
      [RP_MISTAKE_EXPORT] = "ipc-export",
      [RP_MISTAKE_ABORT] = "comm-abort",
  };
  return names[mistake];
}

const char *rp_allocation_name(enum rp_allocation allocation) {
  static const char *const names[RP_ALLOCATION_COUNT] = {"preallocated", "just_in_time", "cached"};
  return names[allocation];
}

static enum rp_mistake parse_mistake(struct argp_state *state, const char *text) {
  for (int i = RP_MISTAKE_NONE + 1; i < RP_MISTAKE_COUNT; i++)
    if (strcmp(text, rp_mistake_name((enum rp_mistake)i)) == 0) return (enum rp_mistake)i;
  argp_error(state, "there is no mistake '%s'", text);
  return RP_MISTAKE_NONE;
}

static enum rp_allocation parse_allocation(struct argp_state *state, const char *text) {
  for (int i = 0; i < RP_ALLOCATION_COUNT; i++)
    if (strcmp(text, rp_allocation_name((enum rp_allocation)i)) == 0) return (enum rp_allocation)i;
  argp_error(state, "--allocation is preallocated, just_in_time or cached, not '%s'", text);
  return RP_ALLOCATION_PREALLOCATED;
}

/** A list of places with commas between them. */
static unsigned parse_lookalikes(struct argp_state *state, const char *text) {
  static const char *const names[] = {"before", "between", "after", "activations"};
  unsigned bits = 0;
  char *copy = strdup(text), *rest = NULL; // the arguments go to the ranks as they are
  if (copy == NULL) argp_failure(state, 1, ENOMEM, "options");
  for (char *word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
    unsigned i = 0;
    while (i < 4 && strcmp(word, names[i]) != 0)
      i++;
    if (i == 4) argp_error(state, "--lookalike is before, between, after or activations, not '%s'", word);
    bits |= 1u << i;
  }
  free(copy);
  return bits;
}

/** Adds "WHAT@STEP"; the step of an earlier change may come again, with the other kind of change. */
static void parse_switch(struct argp_state *state, const char *text, bool schedule) {
  struct rp_trainer_options *o = state->input;
  char *what = strdup(text), *at = what ? strrchr(what, '@') : NULL;
  if (at == NULL) argp_error(state, "'%s' is not WHAT@STEP", text);
  *at = '\0';
  int32_t step = (int32_t)parse_number(state, at + 1, 1, 1000000000);
  struct rp_switch *switches = realloc(o->switches, (o->switch_count + 1) * sizeof *switches);
  if (switches == NULL) argp_failure(state, 1, ENOMEM, "options");
  o->switches = switches;
  size_t place = o->switch_count;
  while (place > 0 && switches[place - 1].step > step)
    place--;
  if (place == 0 || switches[place - 1].step != step) {
    memmove(switches + place + 1, switches + place, (o->switch_count++ - place) * sizeof *switches);
    switches[place++] = (struct rp_switch){.step = step};
  }
  struct rp_switch *change = &switches[place - 1];
  if (schedule) {
    free(change->schedule);
    change->schedule = what;
    return;
  }
  change->microbatches = (int32_t)parse_number(state, what, 1, 65536);
  free(what);
}

// ---- options that do not go together

static bool changes_on_the_way(const struct rp_trainer_options *o) {
  return o->switch_count > 0 || o->rebuild_at >= 0 || o->random;
}

static void check_capture(struct argp_state *state, const struct rp_trainer_options *o) {
  if (o->capture_at < 0) return;
  if (!o->own_stream) argp_error(state, "--capture-at needs --own-stream");
  if (o->allocation == RP_ALLOCATION_JUST_IN_TIME || o->mistake != RP_MISTAKE_NONE || changes_on_the_way(o) ||
      (o->lookalikes & RP_LOOKALIKE_ACTIVATIONS))
    argp_error(state, "--capture-at goes with nothing that allocates, changes or errs on the way");
}

static bool evaluates(const struct rp_trainer_options *o) {
  return o->eval_every > 0 || o->eval_first > 0;
}

static void check_options(struct argp_state *state, const struct rp_trainer_options *o) {
  bool preallocated = o->allocation == RP_ALLOCATION_PREALLOCATED;
  if (((uint64_t)o->rows * o->width) % 2 != 0) argp_error(state, "--batch times --width must be even");
  if (o->message_bytes != 0 && o->message_bytes < RP_MESSAGE_HEADER_BYTES + rp_trainer_payload_bytes(o))
    argp_error(state, "--message-bytes must be at least %llu for these sizes",
               (unsigned long long)(RP_MESSAGE_HEADER_BYTES + rp_trainer_payload_bytes(o)));
  if (o->mistake != RP_MISTAKE_NONE && !preallocated)
    argp_error(state, "--mistake needs --allocation preallocated");
  if (o->mistake != RP_MISTAKE_NONE && (changes_on_the_way(o) || evaluates(o)))
    argp_error(state, "--mistake goes with no change of the schedule");
  if ((o->unguarded_pool || (o->lookalikes & RP_LOOKALIKE_BETWEEN)) && !preallocated)
    argp_error(state, "what concerns preallocated buffers needs --allocation preallocated");
  if (o->unguarded_pool && (o->switch_count > 0 || evaluates(o)))
    argp_error(state, "--unguarded-pool is for one schedule");
  if (o->random && o->switch_count > 0) argp_error(state, "--random-schedule is the only schedule");
  if (o->rebuild_at >= o->steps) argp_error(state, "--rebuild-at is a step of the run");
  check_capture(state, o);
}

// ---- one option

static error_t parse_flag_option(int key, struct rp_trainer_options *o) {
  bool *const flag = key == KEY_RECOMPUTE           ? &o->recompute
                     : key == KEY_BACKWARD_THREAD   ? &o->backward_thread
                     : key == KEY_DRIVER_API        ? &o->driver_api
                     : key == KEY_OWN_STREAM        ? &o->own_stream
                     : key == KEY_TWO_COMMUNICATORS ? &o->two_communicators
                     : key == KEY_PROBE             ? &o->probe
                     : key == KEY_BREAK_WAIT        ? &o->break_wait
                     : key == KEY_UNGUARDED_POOL    ? &o->unguarded_pool
                     : key == KEY_PRINT_SCHEDULE    ? &o->print_schedule
                                                    : NULL;
  if (flag == NULL) return ARGP_ERR_UNKNOWN;
  *flag = true;
  return 0;
}

static error_t parse_text_option(int key, char *arg, struct argp_state *state) {
  struct rp_trainer_options *o = state->input;
  switch (key) {
  case 's':
    o->schedule = arg;
    return 0;
  case 'a':
    o->allocation = parse_allocation(state, arg);
    return 0;
  case KEY_TRUTH_DIR:
    o->truth_dir = arg;
    return 0;
  case KEY_RENDEZVOUS:
    o->rendezvous = arg;
    return 0;
  case KEY_MISTAKE:
    o->mistake = parse_mistake(state, arg);
    return 0;
  case KEY_SWITCH_SCHEDULE:
  case KEY_SWITCH_MICROBATCHES:
    parse_switch(state, arg, key == KEY_SWITCH_SCHEDULE);
    return 0;
  case KEY_LOOKALIKE:
    o->lookalikes = parse_lookalikes(state, arg);
    return 0;
  case KEY_LOOKALIKE_TOUCH:
    o->lookalikes_late = strcmp(arg, "late") == 0;
    if (!o->lookalikes_late && strcmp(arg, "now") != 0)
      argp_error(state, "--lookalike-touch is now or late, not '%s'", arg);
    return 0;
  case 'm':
    o->message_bytes = parse_bytes(state, arg);
    return 0;
  case KEY_SEED:
    o->seed = (uint64_t)parse_number(state, arg, 0, INT64_MAX);
    return 0;
  case KEY_RANDOM:
    o->random = true;
    o->random_seed = (uint64_t)parse_number(state, arg, 0, INT64_MAX);
    return 0;
  default:
    return parse_flag_option(key, o);
  }
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  struct rp_trainer_options *o = state->input;
  enum { MOST_STEPS = 1000000000 };
  const struct {
    int key;
    int32_t *number, low, high;
  } numbers[] = {
      {'S', &o->ranks, 1, 256},
      {'V', &o->chunks, 1, 64},
      {'N', &o->microbatches, 1, 65536},
      {'T', &o->steps, 1, MOST_STEPS},
      {KEY_BATCH, (int32_t *)&o->rows, 1, 65536},
      {KEY_WIDTH, (int32_t *)&o->width, 1, 16384},
      {KEY_HIDDEN, (int32_t *)&o->hidden_width, 1, 16384},
      {KEY_MISTAKE_STEP, &o->mistake_step, 0, MOST_STEPS},
      {KEY_EVAL_EVERY, &o->eval_every, 1, MOST_STEPS},
      {KEY_EVAL_FIRST, &o->eval_first, 1, MOST_STEPS},
      {KEY_EVAL_COUNT, &o->eval_count, 1, MOST_STEPS},
      {KEY_REBUILD_AT, &o->rebuild_at, 1, MOST_STEPS},
      {KEY_CAPTURE_AT, &o->capture_at, 1, MOST_STEPS},
      {KEY_SEGMENT_BLOCKS, &o->segment_blocks, 1, 65536},
      {KEY_IDENTITY, &o->identity, 1, 16384},
      {KEY_LOOKALIKE_COUNT, &o->lookalike_count, 1, 65536},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (numbers[i].key == key) {
      *numbers[i].number = (int32_t)parse_number(state, arg, numbers[i].low, numbers[i].high);
      return 0;
    }
  switch (key) {
  case ARGP_KEY_ARG:
    argp_error(state, "unexpected argument '%s'", arg);
    return 0;
  case ARGP_KEY_END:
    check_options(state, o);
    return 0;
  default:
    return parse_text_option(key, arg, state);
  }
}

void rp_trainer_options_parse(int argc, char **argv, struct rp_trainer_options *options) {
  static const struct argp parser = {
      option_table, parse_option, NULL, "Trains a small model with pipeline parallelism.", NULL, NULL, NULL};
  *options = (struct rp_trainer_options){.schedule = "1f1b",
                                         .steps = 3,
                                         .eval_count = 1,
                                         .rebuild_at = -1,
                                         .capture_at = -1,
                                         .segment_blocks = 1,
                                         .identity = -1,
                                         .lookalike_count = 2,
                                         .rows = 4,
                                         .width = 32,
                                         .hidden_width = 64,
                                         .seed = 1,
                                         .mistake_step = 3};
  argp_parse(&parser, argc, argv, 0, NULL, options);
}

void rp_trainer_options_fini(struct rp_trainer_options *options) {
  for (size_t i = 0; i < options->switch_count; i++)
    free(options->switches[i].schedule);
  free(options->switches);
  options->switches = NULL;
  options->switch_count = 0;
}

uint64_t rp_trainer_payload_bytes(const struct rp_trainer_options *options) {
  return (uint64_t)options->rows * options->width * sizeof(float);
}

uint64_t rp_trainer_message_bytes(const struct rp_trainer_options *options) {
  if (options->message_bytes != 0) return options->message_bytes;
  return RP_MESSAGE_HEADER_BYTES + rp_trainer_payload_bytes(options);
}

uint64_t rp_trainer_buffer_bytes(const struct rp_trainer_options *options) {
  return rp_trainer_message_bytes(options) + (options->mistake == RP_MISTAKE_OVERSIZE ? OVERSIZE_BYTES : 0);
}
