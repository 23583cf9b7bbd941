/* The command line of `recvpool plan`. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "agent/config.h"
#include "agent/plan_command.h"

/* The agent's own bound (RECVPOOL_SLACK). */
#define MOST_SLACK 1024

enum {
  OPT_SCHEDULE = 256,
  OPT_LOWERED,
  OPT_FROM_REPORT,
  OPT_COMPARE,
  OPT_STAGES,
  OPT_RANKS,
  OPT_MICROBATCHES,
  OPT_BUFFER_BYTES,
  OPT_TENSOR,
  OPT_STAGE,
  OPT_SLACK,
  OPT_RECEIVE_AHEAD,
  OPT_GRANULARITY,
  OPT_MIXED_SIZES,
  OPT_FORWARD_ONLY,
  OPT_POST_AT_USE,
  OPT_REPLICAS,
  OPT_TORCH,
  OPT_JSON,
  OPT_OUTPUT,
  OPT_SHOW_TIMELINE,
};

static const struct option options[] = {
    {"schedule", required_argument, NULL, OPT_SCHEDULE},
    {"lowered", required_argument, NULL, OPT_LOWERED},
    {"from-report", required_argument, NULL, OPT_FROM_REPORT},
    {"compare", no_argument, NULL, OPT_COMPARE},
    {"stages", required_argument, NULL, OPT_STAGES},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"microbatches", required_argument, NULL, OPT_MICROBATCHES},
    {"buffer-bytes", required_argument, NULL, OPT_BUFFER_BYTES},
    {"tensor", required_argument, NULL, OPT_TENSOR},
    {"stage", required_argument, NULL, OPT_STAGE},
    {"slack", required_argument, NULL, OPT_SLACK},
    {"receive-ahead", required_argument, NULL, OPT_RECEIVE_AHEAD},
    {"granularity", required_argument, NULL, OPT_GRANULARITY},
    {"mixed-sizes", no_argument, NULL, OPT_MIXED_SIZES},
    {"forward-only", no_argument, NULL, OPT_FORWARD_ONLY},
    {"post-at-use", no_argument, NULL, OPT_POST_AT_USE},
    {"torch", required_argument, NULL, OPT_TORCH},
    {"replicas", required_argument, NULL, OPT_REPLICAS},
    {"json", no_argument, NULL, OPT_JSON},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"show-timeline", no_argument, NULL, OPT_SHOW_TIMELINE},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int print_help(void) {
  puts("Usage: recvpool plan --schedule NAME --stages S --microbatches N [OPTION...]\n"
       "       recvpool plan --lowered FILE.csv [OPTION...]\n"
       "       recvpool plan --from-report FILE|DIR [OPTION...]\n"
       "       recvpool plan --compare PLAN RUN [OPTION...]\n"
       "How many receive buffers a pipeline schedule needs, and what pooling them saves.\n\n"
       "  --schedule NAME      gpipe | 1f1b | interleaved_1f1b | looped_bfs\n"
       "  --stages S           pipeline stages\n"
       "  --ranks P            ranks, where each has several stages [S]\n"
       "  --microbatches N     microbatches of one step\n"
       "  --lowered FILE       schedule file of torch, with its transfers or without\n"
       "  --from-report PATH   reports of an observed run\n"
       "  --compare PLAN RUN   where RUN (reports) departs from PLAN: a saved plan, a schedule file,\n"
       "                       or, with RUN alone, what --schedule says; exit status 1 where it does\n\n"
       "  --buffer-bytes SIZE  bytes of a tensor passed between stages, such as 436MiB; once per tensor\n"
       "  --tensor SHAPE:TYPE  the same from a shape, such as 2x2048x7168:bf16\n"
       "  --slack K            slots beyond the depth, so that a receive can be posted without waiting [2]\n"
       "  --receive-ahead A    receives posted this many places early [0]\n"
       "  --granularity WHO    which buffers share slots: stage | direction | rank [stage]\n"
       "  --mixed-sizes        a slot may hold buffers of its size or smaller\n"
       "  --forward-only       evaluation: the forward is the last reader\n"
       "  --torch VERSION      whose transfers a schedule without them gets [2.10 to 2.14, which agree]\n"
       "  --post-at-use        as if receives were posted directly before their first reader\n\n"
       "  --stage S            show this stage only (the document is always whole)\n"
       "  --replicas R         pipelines of the job, for its totals [1]\n"
       "  --show-timeline      the slots position by position\n"
       "  --json               one JSON document on stdout (share/recvpool/schema/plan.schema.json)\n"
       "  --output FILE        write that document to FILE\n"
       "  --help               this text\n\n"
       "Columns: N buffers received in a step, D most of them live at once, K = min(N, D + slack) slots;\n"
       "  existing: what the ring of fixed size in use for 1F1B takes: stages from here to the last, plus "
       "slack;\n"
       "  rule: ring, where the n-th receive can use slot n mod K, or table, where --json tells the slot.");
  return fflush(stdout) == 0 ? 0 : RP_EXIT_FAILURE;
}

static const char *option_name(int value) {
  for (const struct option *o = options; o->name; o++)
    if (o->val == value) return o->name;
  return "?";
}

static int wrong(int option, const char *value, const char *wanted) {
  rp_cmd_error("plan", "--%s is '%s'; it takes %s", option_name(option), value, wanted);
  return RP_EXIT_USAGE;
}

static bool parse_int(const char *text, int32_t least, int32_t most, int32_t *out) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno || end == text || *end || value < least || value > most) return false;
  *out = (int32_t)value;
  return true;
}

/* --- tensors --- */

static uint64_t type_bits(const char *name) {
  static const struct {
    const char *name;
    uint64_t bits;
  } types[] = {{"bf16", 16},
               {"bfloat16", 16},
               {"fp16", 16},
               {"float16", 16},
               {"f16", 16},
               {"half", 16},
               {"fp32", 32},
               {"float32", 32},
               {"f32", 32},
               {"float", 32},
               {"fp64", 64},
               {"float64", 64},
               {"f64", 64},
               {"double", 64},
               {"fp8", 8},
               {"f8", 8},
               {"float8_e4m3fn", 8},
               {"float8_e4m3fnuz", 8},
               {"float8_e5m2", 8},
               {"float8_e5m2fnuz", 8},
               {"float8_e8m0fnu", 8},
               {"int8", 8},
               {"uint8", 8},
               {"short", 16},
               {"int16", 16},
               {"uint16", 16},
               {"int", 32},
               {"int32", 32},
               {"uint32", 32},
               {"long", 64},
               {"int64", 64},
               {"uint64", 64},
               {"bool", 8},
               {"complex32", 32},
               {"complex64", 64},
               {"complex128", 128}};
  if (strncasecmp(name, "torch.", 6) == 0) name += 6;
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
    if (strcasecmp(types[i].name, name) == 0) return types[i].bits;
  return 0;
}

/* "2x2048x7168:bf16" in bytes; false if it cannot be read or overflows. */
static bool parse_tensor(const char *text, uint64_t *bytes) {
  const char *colon = strchr(text, ':');
  uint64_t product = 1;
  if (!colon || colon == text) return false;
  for (const char *at = text; at < colon;) {
    char *end;
    errno = 0;
    if (*at < '0' || *at > '9') return false;
    unsigned long long size = strtoull(at, &end, 10);
    if (errno || size == 0 || __builtin_mul_overflow(product, (uint64_t)size, &product)) return false;
    if (end != colon && *end != 'x') return false;
    at = end + (end != colon);
    if (end != colon && at == colon) return false;
  }
  uint64_t bits = type_bits(colon + 1);
  if (!bits || __builtin_mul_overflow(product, bits / 8, &product)) return false;
  *bytes = product;
  return true;
}

static int take_size(struct rp_plan_arguments *a, int option, const char *value) {
  uint64_t bytes;
  bool ok = option == OPT_TENSOR ? parse_tensor(value, &bytes) : rp_parse_bytes(value, &bytes) == RP_OK;
  if (!ok || bytes == 0 || bytes > INT64_MAX)
    return wrong(option, value,
                 option == OPT_TENSOR ? "a shape and a type (bf16, fp16, fp32, fp64, fp8, int8 to int64, or "
                                        "torch's names), such as 2x2048x7168:bf16"
                                      : "a size of at least 1 byte, such as 436MiB");
  if (a->options.tensor_count == RP_PLAN_MAX_TENSORS) {
    rp_cmd_error("plan", "more than %d tensors", RP_PLAN_MAX_TENSORS);
    return RP_EXIT_USAGE;
  }
  a->tensor_bytes[a->options.tensor_count++] = bytes;
  return -1;
}

/* --- the other options --- */

static int take_number(struct rp_plan_arguments *a, int option, const char *value) {
  int32_t number;
  switch (option) {
  case OPT_STAGES:
    return parse_int(value, 1, 65536, &a->stages) ? -1 : wrong(option, value, "1 to 65536");
  case OPT_RANKS:
    return parse_int(value, 1, 65536, &a->ranks) ? -1 : wrong(option, value, "1 to 65536");
  case OPT_MICROBATCHES:
    return parse_int(value, 1, 1 << 24, &a->microbatches) ? -1 : wrong(option, value, "1 to 16777216");
  case OPT_STAGE:
    return parse_int(value, 0, 65535, &a->stage) ? -1 : wrong(option, value, "the number of a stage");
  case OPT_REPLICAS:
    return parse_int(value, 1, 1 << 24, &a->replicas) ? -1 : wrong(option, value, "1 to 16777216");
  default:
    break;
  }
  if (option == OPT_SLACK && strcmp(value, "auto") == 0)
    return wrong(option, value,
                 "0 to 1024; what is enough, a run finds: recvpool run --mode enforce --slack auto");
  if (!parse_int(value, 0, MOST_SLACK, &number)) return wrong(option, value, "0 to 1024");
  *(option == OPT_SLACK ? &a->options.slack : &a->options.receive_ahead) = (uint32_t)number;
  return -1;
}

/* "2.11" as 211. */
static int take_torch(struct rp_plan_arguments *a, const char *value) {
  int32_t minor;
  if (strncmp(value, "2.", 2) != 0 || value[2] < '0' || value[2] > '9' ||
      !parse_int(value + 2, 6, 99, &minor))
    return wrong(OPT_TORCH, value, "a version from 2.6 on, such as 2.11");
  a->options.torch_version = 200 + (int)minor;
  return -1;
}

static int take_option(struct rp_plan_arguments *a, int option, const char *value) {
  switch (option) {
  case OPT_SCHEDULE:
    a->schedule = value;
    return -1;
  case OPT_LOWERED:
    a->lowered = value;
    return -1;
  case OPT_FROM_REPORT:
    a->from_report = value;
    return -1;
  case OPT_COMPARE:
    a->compare = true;
    return -1;
  case OPT_OUTPUT:
    a->output = value;
    return -1;
  case OPT_JSON:
    a->json = true;
    return -1;
  case OPT_SHOW_TIMELINE:
    a->timeline = true;
    return -1;
  case OPT_MIXED_SIZES:
    a->options.mixed_sizes = 1;
    return -1;
  case OPT_FORWARD_ONLY:
    a->options.forward_only = 1;
    return -1;
  case OPT_POST_AT_USE:
    a->options.post_at_use = 1;
    return -1;
  case OPT_TORCH:
    return take_torch(a, value);
  case OPT_BUFFER_BYTES:
  case OPT_TENSOR:
    return take_size(a, option, value);
  case OPT_GRANULARITY:
    a->options.granularity = rp_plan_granularity_of(value);
    return a->options.granularity >= 0 ? -1 : wrong(option, value, "stage, direction or rank");
  default:
    return take_number(a, option, value);
  }
}

static int usage(const char *message) {
  rp_cmd_error("plan", "%s", message);
  return RP_EXIT_USAGE;
}

int rp_plan_check_settled(const struct rp_plan_options *o) {
  if (o->forward_only || o->post_at_use || o->receive_ahead || o->torch_version || o->tensor_count)
    return usage(
        "a run or a saved plan says itself what is received when: leave off --buffer-bytes, --tensor, "
        "--forward-only, --post-at-use, --receive-ahead and --torch");
  return -1;
}

/* What options need of one another. */
static int check_arguments(struct rp_plan_arguments *a, int left, char **rest) {
  int sources = !!a->schedule + !!a->lowered + !!a->from_report;
  if (a->compare) {
    int wanted = a->schedule ? 1 : 2;
    if (left != wanted || a->lowered || a->from_report)
      return usage("--compare takes a saved plan or a schedule file, then the reports of a run; or "
                   "--schedule and the reports");
    if (a->json || a->output || a->timeline || a->stage >= 0 || a->replicas != 1)
      return usage(
          "--compare prints its findings only: --json, --output, --stage, --show-timeline and --replicas "
          "do not go with it");
    a->lowered = a->schedule ? NULL : rest[0];
    a->from_report = rest[wanted - 1];
  } else if (left) {
    rp_cmd_error("plan", "'%s' belongs to no option; recvpool plan --help lists them", rest[0]);
    return RP_EXIT_USAGE;
  } else if (sources != 1) {
    return usage(sources ? "--schedule, --lowered and --from-report exclude one another"
                         : "nothing to plan: name one of --schedule, --lowered, --from-report and --compare");
  }
  if (a->json && a->timeline) return usage("--json prints its document alone: leave off --show-timeline");
  if (!a->schedule && (a->stages || a->microbatches || a->ranks))
    return usage("--stages, --ranks and --microbatches belong to --schedule; a file says them itself");
  if (!a->schedule) return a->lowered ? -1 : rp_plan_check_settled(&a->options);
  if (!a->stages || !a->microbatches) return usage("--schedule needs --stages and --microbatches");
  if (!a->ranks) a->ranks = a->stages;
  if (a->stages % a->ranks)
    return usage("--stages must be a multiple of --ranks: every rank has the same number of stages");
  if (a->stage >= a->stages) {
    rp_cmd_error("plan", "there is no stage %d; stages are 0 to %d", (int)a->stage, (int)a->stages - 1);
    return RP_EXIT_USAGE;
  }
  return -1;
}

int rp_plan_take_arguments(int argc, char **argv, struct rp_plan_arguments *out) {
  *out = (struct rp_plan_arguments){.options = RP_PLAN_OPTIONS_INIT, .stage = -1, .replicas = 1};
  out->options.slack = RP_PLAN_DEFAULT_SLACK;
  for (;;) {
    int before = optind;
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == -1) break;
    if (option == 'h') return print_help();
    if (option == '?' || option == ':') return rp_cmd_bad_option("plan", option, argv, before);
    int status = take_option(out, option, optarg);
    if (status >= 0) return status;
  }
  return check_arguments(out, argc - optind, argv + optind);
}
