// Command line of the trainer, and the schedule that it names.
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
  KEY_PROBE,
  KEY_MISTAKE,
  KEY_MISTAKE_STEP,
  KEY_BATCH,
  KEY_WIDTH,
  KEY_HIDDEN,
  KEY_SEED,
  KEY_TRUTH_DIR,
  KEY_RENDEZVOUS
};

static const struct argp_option option_table[] = {
    {"schedule", 's', "NAME|FILE", 0, "gpipe, 1f1b (default), interleaved_1f1b, looped_bfs, or a CSV file",
     0},
    {"stages", 'S', "COUNT", 0, "ranks, each a process (default 4, or as the file says)", 0},
    {"chunks", 'V', "COUNT", 0, "stages per rank (default 2 for interleaved and looped schedules, else 1)",
     0},
    {"microbatches", 'N', "COUNT", 0, "microbatches per step (default 8)", 0},
    {"steps", 'T', "COUNT", 0, "steps (default 3)", 0},
    {"allocation", 'a', "HOW", 0, "receive buffers: preallocated (default) or just_in_time", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0, "run the forward again in the backward instead of saving", 0},
    {"backward-thread", KEY_BACKWARD_THREAD, NULL, 0, "run backward actions on a host thread of their own",
     0},
    {"message-bytes", 'm', "BYTES", 0, "size of a transfer, with KiB, MiB or GiB (default: what is needed)",
     0},
    {"batch", KEY_BATCH, "ROWS", 0, "rows of a microbatch (default 4)", 0},
    {"width", KEY_WIDTH, "COUNT", 0, "width of a stage's input (default 32)", 0},
    {"hidden", KEY_HIDDEN, "COUNT", 0, "width of the hidden layer (default 64)", 0},
    {"seed", KEY_SEED, "NUMBER", 0, "seed of weights and data (default 1)", 0},
    {"truth-dir", KEY_TRUTH_DIR, "DIR", 0, "write what really happened to DIR/rank-R.jsonl", 0},
    {"driver-api", KEY_DRIVER_API, NULL, 0, "allocate and copy through the driver instead of the runtime", 0},
    {"own-stream", KEY_OWN_STREAM, NULL, 0, "compute on a created stream instead of the default stream", 0},
    {"probe", KEY_PROBE, NULL, 0, "exchange one element with both neighbours first, as torch does", 0},
    {"rendezvous", KEY_RENDEZVOUS, "FILE", 0, "be the one rank that RANK and WORLD_SIZE name; meet at FILE",
     0},
    {"mistake", KEY_MISTAKE, "NAME", 0,
     "do what is harmless only without pools: early_reuse, unordered_reuse, foreign_access or stale_access",
     0},
    {"mistake-step", KEY_MISTAKE_STEP, "STEP", 0, "first step with the mistake, from 0 (default 3)", 0},
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

static enum rp_mistake parse_mistake(struct argp_state *state, const char *text) {
  static const char *const names[] = {[RP_MISTAKE_EARLY_REUSE] = "early_reuse",
                                      [RP_MISTAKE_UNORDERED_REUSE] = "unordered_reuse",
                                      [RP_MISTAKE_FOREIGN_ACCESS] = "foreign_access",
                                      [RP_MISTAKE_STALE_ACCESS] = "stale_access"};
  for (int i = RP_MISTAKE_EARLY_REUSE; i <= RP_MISTAKE_STALE_ACCESS; i++)
    if (strcmp(text, names[i]) == 0) return (enum rp_mistake)i;
  argp_error(state, "there is no mistake '%s'", text);
  return RP_MISTAKE_NONE;
}

/** Refuses options that do not go together. */
static void check_options(struct argp_state *state, const struct rp_trainer_options *o) {
  if (((uint64_t)o->rows * o->width) % 2 != 0) argp_error(state, "--batch times --width must be even");
  if (o->message_bytes != 0 && o->message_bytes < RP_MESSAGE_HEADER_BYTES + rp_trainer_payload_bytes(o))
    argp_error(state, "--message-bytes must be at least %llu for these sizes",
               (unsigned long long)(RP_MESSAGE_HEADER_BYTES + rp_trainer_payload_bytes(o)));
  if (o->mistake != RP_MISTAKE_NONE && o->just_in_time)
    argp_error(state, "--mistake needs --allocation preallocated");
  if (o->mistake == RP_MISTAKE_EARLY_REUSE && !rp_trainer_is_1f1b(o))
    argp_error(state, "--mistake early_reuse needs --schedule 1f1b");
}

static error_t parse_text_option(int key, char *arg, struct argp_state *state) {
  struct rp_trainer_options *o = state->input;
  switch (key) {
  case 's':
    o->schedule = arg;
    return 0;
  case KEY_TRUTH_DIR:
    o->truth_dir = arg;
    return 0;
  case KEY_RENDEZVOUS:
    o->rendezvous = arg;
    return 0;
  case KEY_RECOMPUTE:
    o->recompute = true;
    return 0;
  case KEY_BACKWARD_THREAD:
    o->backward_thread = true;
    return 0;
  case KEY_DRIVER_API:
    o->driver_api = true;
    return 0;
  case KEY_OWN_STREAM:
    o->own_stream = true;
    return 0;
  case KEY_PROBE:
    o->probe = true;
    return 0;
  case KEY_MISTAKE:
    o->mistake = parse_mistake(state, arg);
    return 0;
  case KEY_BREAK_WAIT:
    o->break_wait = true;
    return 0;
  case 'a':
    o->just_in_time = strcmp(arg, "just_in_time") == 0;
    if (!o->just_in_time && strcmp(arg, "preallocated") != 0)
      argp_error(state, "--allocation is preallocated or just_in_time, not '%s'", arg);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  struct rp_trainer_options *o = state->input;
  switch (key) {
  case 'S':
    o->ranks = (int32_t)parse_number(state, arg, 1, 256);
    return 0;
  case 'V':
    o->chunks = (int32_t)parse_number(state, arg, 1, 64);
    return 0;
  case 'N':
    o->microbatches = (int32_t)parse_number(state, arg, 1, 65536);
    return 0;
  case 'T':
    o->steps = (int32_t)parse_number(state, arg, 1, 1000000000);
    return 0;
  case 'm':
    o->message_bytes = parse_bytes(state, arg);
    return 0;
  case KEY_BATCH:
    o->rows = (uint32_t)parse_number(state, arg, 1, 65536);
    return 0;
  case KEY_WIDTH:
    o->width = (uint32_t)parse_number(state, arg, 1, 16384);
    return 0;
  case KEY_HIDDEN:
    o->hidden_width = (uint32_t)parse_number(state, arg, 1, 16384);
    return 0;
  case KEY_MISTAKE_STEP:
    o->mistake_step = (int32_t)parse_number(state, arg, 0, 1000000000);
    return 0;
  case KEY_SEED:
    o->seed = (uint64_t)parse_number(state, arg, 0, INT64_MAX);
    return 0;
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
                                         .microbatches = 8,
                                         .steps = 3,
                                         .rows = 4,
                                         .width = 32,
                                         .hidden_width = 64,
                                         .seed = 1,
                                         .mistake_step = 3};
  argp_parse(&parser, argc, argv, 0, NULL, options);
}

uint64_t rp_trainer_payload_bytes(const struct rp_trainer_options *options) {
  return (uint64_t)options->rows * options->width * sizeof(float);
}

uint64_t rp_trainer_message_bytes(const struct rp_trainer_options *options) {
  if (options->message_bytes != 0) return options->message_bytes;
  return RP_MESSAGE_HEADER_BYTES + rp_trainer_payload_bytes(options);
}

bool rp_trainer_is_gpipe(const struct rp_trainer_options *options) {
  return strcmp(options->schedule, "gpipe") == 0;
}

bool rp_trainer_is_1f1b(const struct rp_trainer_options *options) {
  return strcmp(options->schedule, "1f1b") == 0;
}

/** Reads a whole file; NULL after a message. The caller frees it. */
static char *read_file(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  char *text = NULL;
  size_t capacity = 0, used = 0;
  while (file != NULL && !feof(file) && !ferror(file)) {
    if (used == capacity) {
      capacity = capacity == 0 ? 65536 : 2 * capacity;
      char *bigger = realloc(text, capacity);
      if (bigger == NULL) break;
      text = bigger;
    }
    used += fread(text + used, 1, capacity - used, file);
  }
  bool whole = file != NULL && feof(file) && !ferror(file);
  if (!whole) fprintf(stderr, "trainer: cannot read schedule '%s': %s\n", path, strerror(errno));
  if (file != NULL) fclose(file);
  if (whole) {
    *length = used;
    return text;
  }
  free(text);
  return NULL;
}

static rp_status schedule_from_file(const char *path, struct rp_schedule *schedule,
                                    struct rp_schedule_error *error) {
  size_t length = 0;
  char *text = read_file(path, &length);
  if (text == NULL) return RP_ERROR_IO;
  rp_status status = rp_schedule_parse(text, length, schedule, error);
  free(text);
  if (status != RP_OK) return status;
  status = rp_schedule_lower(schedule, error);
  if (status == RP_OK) status = rp_schedule_check(schedule, error);
  if (status != RP_OK) rp_schedule_fini(schedule);
  return status;
}

static int adopt_file_sizes(struct rp_trainer_options *options, const struct rp_schedule *schedule) {
  if (options->ranks != 0 && options->ranks != schedule->ranks) {
    fprintf(stderr, "trainer: schedule '%s' is for %d ranks, not %d\n", options->schedule, schedule->ranks,
            options->ranks);
    return -1;
  }
  options->ranks = schedule->ranks;
  options->chunks = schedule->stages / schedule->ranks;
  options->microbatches = schedule->microbatches;
  return 0;
}

int rp_trainer_schedule(struct rp_trainer_options *options, struct rp_schedule *schedule) {
  static const char *const named[] = {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"};
  struct rp_schedule_error error = {.message = ""};
  bool is_named = false, looped = false;
  for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
    if (strcmp(options->schedule, named[i]) == 0) {
      is_named = true;
      looped = i >= 2;
    }
  rp_status status;
  if (is_named) {
    if (options->ranks == 0) options->ranks = 4;
    if (options->chunks == 0) options->chunks = looped ? 2 : 1;
    status = rp_schedule_generate(options->schedule, options->ranks, options->chunks, options->microbatches,
                                  schedule, &error);
  } else {
    status = schedule_from_file(options->schedule, schedule, &error);
  }
  if (status != RP_OK) {
    if (status != RP_ERROR_IO)
      fprintf(stderr, "trainer: schedule '%s': %s: %s\n", options->schedule, rp_status_text(status),
              error.message);
    return -1;
  }
  if (!is_named && adopt_file_sizes(options, schedule) != 0) {
    rp_schedule_fini(schedule);
    return -1;
  }
  return 0;
}
