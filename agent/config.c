/* Configuration: the table of RECVPOOL_* variables, their parsers, and what is said about nonsense in them.
 * Runs inside other people's programs: no allocation, no locale (decimals are parsed by hand), nothing is
 * printed. */
#include "agent/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#define PREFIX "RECVPOOL_"
#define TEST_PREFIX PREFIX "TEST_" /* of the library's own tests: no business of this table */
#define MAX_SLACK 1024u
#define DEFAULT_SLACK 2u
#define PATH_BYTES 4096u
#define MIN_INTERVAL_SECONDS 0.05
#define MAX_INTERVAL_SECONDS 3600.0
/* How much of a bad value, or of an unknown name, a warning repeats: all variables together fit in one log
 * line. */
#define SHOWN_VALUE_BYTES 16
#define SHOWN_NAME_BYTES 32

typedef rp_status parse_function(struct rp_config *config, const char *value);

struct variable {
  struct rp_config_variable row;
  const char *rule; /* what the value must be; completes "NAME must be …" */
  parse_function *parse;
};

/* "12.5": whole part and fraction apart, so that integers stay exact. No sign, no exponent. */
static rp_status parse_decimal(const char *text, const char **end, uint64_t *whole, double *fraction) {
  const char *p = text;
  uint64_t value = 0;
  for (; *p >= '0' && *p <= '9'; p++)
    if (__builtin_mul_overflow(value, 10u, &value) ||
        __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
      return RP_ERROR_INVALID;
  if (p == text) return RP_ERROR_INVALID;
  double part = 0, scale = 1;
  if (*p == '.') {
    const char *digits = ++p;
    for (; *p >= '0' && *p <= '9'; p++) {
      scale /= 10;
      part += scale * (*p - '0');
    }
    if (p == digits) return RP_ERROR_INVALID;
  }
  *end = p;
  *whole = value;
  *fraction = part;
  return RP_OK;
}

/* Bytes per unit; 0 for a suffix that is none. */
static uint64_t unit_bytes(const char *suffix) {
  static const struct {
    const char *name;
    uint64_t bytes;
  } units[] = {{"", 1},
               {"B", 1},
               {"KiB", 1ull << 10},
               {"MiB", 1ull << 20},
               {"GiB", 1ull << 30},
               {"TiB", 1ull << 40},
               {"KB", 1000ull},
               {"kB", 1000ull},
               {"MB", 1000000ull},
               {"GB", 1000000000ull},
               {"TB", 1000000000000ull}};
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strcmp(suffix, units[i].name) == 0) return units[i].bytes;
  return 0;
}

rp_status rp_parse_bytes(const char *text, uint64_t *out_bytes) {
  const char *end;
  uint64_t whole, bytes;
  double fraction;
  if (!text || parse_decimal(text, &end, &whole, &fraction) != RP_OK) return RP_ERROR_INVALID;
  uint64_t unit = unit_bytes(end);
  if (unit == 0 || (unit == 1 && fraction != 0)) return RP_ERROR_INVALID;
  if (__builtin_mul_overflow(whole, unit, &bytes)) return RP_ERROR_INVALID;
  if (__builtin_add_overflow(bytes, (uint64_t)(fraction * (double)unit + 0.5), &bytes))
    return RP_ERROR_INVALID;
  *out_bytes = bytes;
  return RP_OK;
}

/* Place of `value` in `words`, or -1. */
static int word_index(const char *value, const char *const *words, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(value, words[i]) == 0) return (int)i;
  return -1;
}

static const char *const mode_words[] = {"observe", "off", "enforce"}; /* by enum rp_mode */

static const char *const policy_words[] = {"fallback", "report", "abort"}; /* by enum rp_pool_policy */
static const char *const cupti_words[] = {"always", "off", "learn"};       /* by enum rp_cupti_policy */
#define WORD(words, value) ((size_t)(value) < sizeof(words) / sizeof *(words) ? (words)[value] : "unknown")

const char *rp_mode_name(enum rp_mode mode) {
  return WORD(mode_words, mode);
}

const char *rp_on_violation_name(enum rp_pool_policy policy) {
  return WORD(policy_words, policy);
}

const char *rp_cupti_policy_name(enum rp_cupti_policy policy) {
  return WORD(cupti_words, policy);
}

static rp_status parse_mode(struct rp_config *config, const char *value) {
  int index = word_index(value, mode_words, sizeof mode_words / sizeof mode_words[0]);
  if (index < 0) return RP_ERROR_INVALID;
  config->mode = (enum rp_mode)index;
  return RP_OK;
}

/* A relative path is made absolute here, since the program may change its working directory later. */
static rp_status parse_path(char *out, size_t out_size, const char *value) {
  char full[PATH_BYTES];
  size_t used = 0;
  if (value[0] == '\0') return RP_ERROR_INVALID;
  if (value[0] != '/') {
    if (!getcwd(full, sizeof full)) return RP_ERROR_INVALID;
    used = strlen(full);
  }
  int wrote = snprintf(full + used, sizeof full - used, "%s%s", used ? "/" : "", value);
  if (wrote < 0 || (size_t)wrote >= sizeof full - used) return RP_ERROR_INVALID;
  snprintf(out, out_size, "%s", full);
  return RP_OK;
}

static rp_status parse_report_dir(struct rp_config *config, const char *value) {
  return parse_path(config->report_dir, sizeof config->report_dir, value);
}

static rp_status parse_plan(struct rp_config *config, const char *value) {
  return parse_path(config->plan_path, sizeof config->plan_path, value);
}

static rp_status parse_interval(struct rp_config *config, const char *value) {
  const char *end;
  uint64_t whole;
  double fraction;
  if (parse_decimal(value, &end, &whole, &fraction) != RP_OK || *end != '\0') return RP_ERROR_INVALID;
  double seconds = (double)whole + fraction;
  if (seconds < MIN_INTERVAL_SECONDS || seconds > MAX_INTERVAL_SECONDS) return RP_ERROR_INVALID;
  config->interval_seconds = seconds;
  return RP_OK;
}

static rp_status parse_positive_bytes(const char *value, uint64_t *out) {
  uint64_t bytes;
  if (rp_parse_bytes(value, &bytes) != RP_OK || bytes == 0 || bytes > INT64_MAX) return RP_ERROR_INVALID;
  *out = bytes;
  return RP_OK;
}

static rp_status parse_min_bytes(struct rp_config *config, const char *value) {
  return parse_positive_bytes(value, &config->min_bytes);
}

static rp_status parse_buffer_bytes(struct rp_config *config, const char *value) {
  return parse_positive_bytes(value, &config->buffer_bytes);
}

static rp_status parse_whole(const char *value, uint32_t least, uint32_t most, uint32_t *out) {
  const char *end;
  uint64_t whole;
  double fraction;
  if (parse_decimal(value, &end, &whole, &fraction) != RP_OK || *end != '\0') return RP_ERROR_INVALID;
  if (strchr(value, '.') || whole < least || whole > most) return RP_ERROR_INVALID;
  *out = (uint32_t)whole;
  return RP_OK;
}

static rp_status parse_slack(struct rp_config *config, const char *value) {
  bool found_by_agent = strcmp(value, "auto") == 0;
  uint32_t slack = DEFAULT_SLACK;
  if (!found_by_agent && parse_whole(value, 0, MAX_SLACK, &slack) != RP_OK) return RP_ERROR_INVALID;
  config->slack = slack;
  config->slack_auto = found_by_agent;
  return RP_OK;
}

static rp_status parse_headroom(struct rp_config *config, const char *value) {
  uint64_t bytes;
  if (rp_parse_bytes(value, &bytes) != RP_OK || bytes > INT64_MAX) return RP_ERROR_INVALID;
  config->headroom_bytes = bytes;
  return RP_OK;
}

static rp_status parse_slots(struct rp_config *config, const char *value) {
  return parse_whole(value, 1, RP_CONFIG_MAX_SLOTS, &config->slots);
}

static rp_status parse_plan_rank(struct rp_config *config, const char *value) {
  uint32_t rank;
  if (parse_whole(value, 0, INT32_MAX, &rank) != RP_OK) return RP_ERROR_INVALID;
  config->plan_rank = (int32_t)rank;
  return RP_OK;
}

static rp_status parse_flag(const char *value, bool *out) {
  if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0) return RP_ERROR_INVALID;
  *out = value[0] == '1';
  return RP_OK;
}

static rp_status parse_verbose(struct rp_config *config, const char *value) {
  return parse_flag(value, &config->verbose);
}

static rp_status parse_strict(struct rp_config *config, const char *value) {
  return parse_flag(value, &config->strict);
}

static rp_status parse_on_violation(struct rp_config *config, const char *value) {
  _Static_assert(RP_POOL_ON_STALE_FALLBACK == 0 && RP_POOL_ON_STALE_REPORT == 1 &&
                     RP_POOL_ON_STALE_ABORT == 2,
                 "the words are in the order of the policies");
  int index = word_index(value, policy_words, sizeof policy_words / sizeof policy_words[0]);
  if (index < 0) return RP_ERROR_INVALID;
  config->on_violation = (enum rp_pool_policy)index;
  return RP_OK;
}

/* It becomes part of no path, but of reports. */
static rp_status parse_run(struct rp_config *config, const char *value) {
  size_t length = strlen(value);
  if (length == 0 || length >= sizeof config->run) return RP_ERROR_INVALID;
  if (strspn(value, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") != length)
    return RP_ERROR_INVALID;
  memcpy(config->run, value, length + 1);
  return RP_OK;
}

static rp_status parse_cupti(struct rp_config *config, const char *value) {
  int index = word_index(value, cupti_words, sizeof cupti_words / sizeof cupti_words[0]);
  if (index < 0) return RP_ERROR_INVALID;
  config->cupti = (enum rp_cupti_policy)index;
  return RP_OK;
}

static const struct variable variables[] = {
    {{"RECVPOOL_MODE", "observe | enforce | off", "observe",
      "trace and report, also share the memory of receive buffers, or do nothing"},
     "observe, enforce or off",
     parse_mode},
    {{"RECVPOOL_PLAN", "FILE", "none: learn from two steps",
      "enforce from the first step by this plan of recvpool plan --output"},
     "the path of a plan",
     parse_plan},
    {{"RECVPOOL_PLAN_RANK", "RANK", "RANK of the launcher, where the job has as many ranks as the plan",
      "which rank of the plan this process is"},
     "a whole number, at least 0",
     parse_plan_rank},
    {{"RECVPOOL_BUFFER_BYTES", "BYTES", "any", "enforce for receives of this size only"},
     "bytes, at least 1, as in 10485760 or 10MiB",
     parse_buffer_bytes},
    {{"RECVPOOL_SLOTS", "COUNT", "D + slack",
      "at least so many slots once buffers of that size share, 1 to 65536"},
     "a whole number, 1 to 65536",
     parse_slots},
    {{"RECVPOOL_REPORT_DIR", "DIR",
      "$XDG_RUNTIME_DIR/recvpool, else /run/recvpool for root, else /tmp/recvpool-UID",
      "where each process writes its report"},
     "the path of a folder",
     parse_report_dir},
    {{"RECVPOOL_INTERVAL", "SECONDS", "5", "how often the report is rewritten, 0.05 to 3600"},
     "seconds, 0.05 to 3600",
     parse_interval},
    {{"RECVPOOL_MIN_BYTES", "BYTES", "64KiB", "receives smaller than this are not looked at"},
     "bytes, at least 1, as in 65536 or 64KiB",
     parse_min_bytes},
    {{"RECVPOOL_SLACK", "COUNT | auto", "2",
      "slots beyond the measured depth, 0 to 1024, or auto: as few as let no receive wait"},
     "a whole number, 0 to 1024, or auto",
     parse_slack},
    {{"RECVPOOL_HEADROOM", "BYTES", "0",
      "memory kept back for each size of buffers that share, in whole buffers: for one that needs its own "
      "when "
      "the device has none left"},
     "bytes, as in 0, 10485760 or 10MiB",
     parse_headroom},
    {{"RECVPOOL_ON_VIOLATION", "report | fallback | abort", "fallback",
      "what unsafe reuse that could not be prevented leads to: a line in the report, also the end of "
      "sharing, "
      "or the end of the process"},
     "report, fallback or abort",
     parse_on_violation},
    {{"RECVPOOL_STRICT", "0 | 1", "0",
      "take memory away from released buffers, so that an unseen access fails instead of reading wrong data; "
      "slow"},
     "0 or 1",
     parse_strict},
    {{"RECVPOOL_CUPTI", "always | learn | off", "always",
      "hold the only CUPTI subscription, give it back once memory is shared, or leave it to others"},
     "always, learn or off",
     parse_cupti},
    {{"RECVPOOL_RUN", "WORD", "none", "set by recvpool run: which run a report belongs to"},
     "up to 63 letters, digits, dots, dashes and underscores",
     parse_run},
    {{"RECVPOOL_VERBOSE", "0 | 1", "0", "say on stderr what the agent does"}, "0 or 1", parse_verbose},
};
#define VARIABLE_COUNT (sizeof variables / sizeof variables[0])

const struct rp_config_variable *rp_config_variable(size_t index) {
  return index < VARIABLE_COUNT ? &variables[index].row : NULL;
}

static const struct variable *find_variable(const char *name, size_t length) {
  for (size_t i = 0; i < VARIABLE_COUNT; i++)
    if (strlen(variables[i].row.name) == length && memcmp(variables[i].row.name, name, length) == 0)
      return &variables[i];
  return NULL;
}

void rp_config_default_report_dir(char *out, size_t out_size) {
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime && runtime[0] == '/' && strlen(runtime) + sizeof "/recvpool" <= out_size)
    snprintf(out, out_size, "%s/recvpool", runtime);
  else if (geteuid() == 0)
    snprintf(out, out_size, "/run/recvpool");
  else
    snprintf(out, out_size, "/tmp/recvpool-%lu", (unsigned long)geteuid());
}

void rp_config_defaults(struct rp_config *config) {
  memset(config, 0, sizeof *config);
  config->mode = RP_MODE_OBSERVE;
  config->interval_seconds = 5;
  config->min_bytes = 64 << 10;
  config->slack = DEFAULT_SLACK;
  config->cupti = RP_CUPTI_ALWAYS;
  config->plan_rank = -1;
  config->on_violation = RP_POOL_ON_STALE_FALLBACK;
  rp_config_default_report_dir(config->report_dir, sizeof config->report_dir);
}

rp_status rp_config_set(struct rp_config *config, const char *name, const char *value, char *message,
                        size_t message_size) {
  const struct variable *variable = find_variable(name, strlen(name));
  if (!variable) {
    snprintf(message, message_size, "there is no such variable");
    return RP_ERROR_NOT_FOUND;
  }
  rp_status status = variable->parse(config, value);
  if (status != RP_OK) snprintf(message, message_size, "must be %s", variable->rule);
  return status;
}

/* The one line of warnings, filled from the left and cut where it is full. */
struct line {
  char *text;
  size_t size, used;
};

static void __attribute__((format(printf, 2, 3))) line_add(struct line *line, const char *format, ...) {
  if (line->used + 1 >= line->size) return;
  va_list arguments;
  va_start(arguments, format);
  int wrote = vsnprintf(line->text + line->used, line->size - line->used, format, arguments);
  va_end(arguments);
  if (wrote < 0) return;
  size_t room = line->size - line->used - 1;
  line->used += (size_t)wrote < room ? (size_t)wrote : room;
}

/* What comes from the environment may hold anything: only printable ASCII is repeated, so that the warning
 * stays one line and harmless in a terminal. */
static void line_add_clean(struct line *line, const char *text, size_t length, size_t most) {
  size_t shown = length < most ? length : most;
  for (size_t i = 0; i < shown; i++)
    line_add(line, "%c", text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?');
  if (shown < length) line_add(line, "...");
}

static void read_one(struct rp_config *config, const char *entry, struct line *line) {
  const char *equals = strchr(entry, '=');
  if (!equals) return;
  size_t length = (size_t)(equals - entry);
  const struct variable *variable = find_variable(entry, length);
  if (variable && variable->parse(config, equals + 1) == RP_OK) return;
  if (line->used) line_add(line, "; ");
  if (!variable) {
    line_add_clean(line, entry, length, SHOWN_NAME_BYTES);
    line_add(line, " is no variable of recvpool");
    return;
  }
  line_add(line, "%s='", variable->row.name);
  line_add_clean(line, equals + 1, strlen(equals + 1), SHOWN_VALUE_BYTES);
  line_add(line, "' must be %s", variable->rule);
}

/* "--buffer-bytes" or "RECVPOOL_BUFFER_BYTES": `option` is the former without dashes. */
static const char *shown_name(const char *option, bool options, char *out, size_t out_size) {
  snprintf(out, out_size, "%s%s", options ? "--" : PREFIX, option);
  for (char *c = out + 2; !options && *c; c++)
    *c = *c == '-' ? '_' : *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
  return out;
}

rp_status rp_config_check(const struct rp_config *config, bool options, char *message, size_t message_size) {
  bool enforce = config->mode == RP_MODE_ENFORCE, plan = config->plan_path[0] != '\0';
  const struct {
    bool wrong;
    const char *option, *middle, *other, *end;
    bool mode_too; /* enforce is missing as well */
  } rules[] = {
      {plan && config->buffer_bytes, "plan", " and ", "buffer-bytes",
       " exclude each other: the plan has sizes", false},
      {plan && config->slots, "plan", " and ", "slots", " exclude each other: the plan has the slots", false},
      {plan && config->slack_auto, "plan", " and ", "slack",
       " auto exclude each other: the plan has the slots", false},
      {config->slots && config->slack_auto, "slots", " and ", "slack",
       " auto exclude each other: the number of slots is given", false},
      {config->slots && !config->buffer_bytes, "slots", " needs ", "buffer-bytes", ": of which receives?",
       !enforce},
      {config->plan_rank >= 0 && !plan, "plan-rank", " needs ", "plan", ": a rank of which plan?", !enforce},
      {plan && !enforce, "plan", " needs ", "mode", " enforce", false},
      {config->buffer_bytes && !enforce, "buffer-bytes", " needs ", "mode", " enforce", false},
      {config->buffer_bytes && config->buffer_bytes < config->min_bytes, "buffer-bytes", " is less than ",
       "min-bytes", ": such receives are not followed", false},
      {config->headroom_bytes && !enforce, "headroom", " needs ", "mode", " enforce", false},
      {config->strict && !enforce, "strict", " needs ", "mode", " enforce", false},
      {config->on_violation != RP_POOL_ON_STALE_FALLBACK && !enforce, "on-violation", " needs ", "mode",
       " enforce", false},
      {config->cupti == RP_CUPTI_LEARN && !enforce, "cupti", " learn needs ", "mode", " enforce", false},
  };
  if (config->mode == RP_MODE_OFF) return RP_OK; /* nothing is done with any of them */
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    char one[64], two[64], mode[64];
    if (!rules[i].wrong) continue;
    shown_name("mode", options, mode, sizeof mode);
    snprintf(message, message_size, "%s%s%s%s%s%s%s", shown_name(rules[i].option, options, one, sizeof one),
             rules[i].middle, shown_name(rules[i].other, options, two, sizeof two),
             rules[i].mode_too ? " and " : "", rules[i].mode_too ? mode : "",
             rules[i].mode_too ? " enforce" : "", rules[i].end);
    return RP_ERROR_INVALID;
  }
  return RP_OK;
}

/* A job must not be harmed by what its environment says: it runs, observed. */
static void settle(struct rp_config *config, struct line *line) {
  static const char word[] = "contradiction: ";
  char message[sizeof config->problem - sizeof word];
  if (rp_config_check(config, false, message, sizeof message) == RP_OK) return;
  snprintf(config->problem, sizeof config->problem, "%s%s", word, message);
  config->mode = RP_MODE_OBSERVE;
  config->plan_path[0] = '\0';
  config->plan_rank = -1;
  config->buffer_bytes = 0;
  config->slots = 0;
  config->headroom_bytes = 0;
  config->strict = false;
  config->on_violation = RP_POOL_ON_STALE_FALLBACK;
  if (config->cupti == RP_CUPTI_LEARN) config->cupti = RP_CUPTI_ALWAYS;
  line_add(line, "%s%s; the job is observed only", line->used ? "; " : "", message);
}

static void read_environment(struct rp_config *config, struct line *line) {
  if (line->size) line->text[0] = '\0';
  rp_config_defaults(config);
  for (char **entry = environ; entry && *entry; entry++)
    if (strncmp(*entry, PREFIX, sizeof PREFIX - 1) == 0 &&
        strncmp(*entry, TEST_PREFIX, sizeof TEST_PREFIX - 1) != 0)
      read_one(config, *entry, line);
}

void rp_config_read_environment(struct rp_config *config, char *warnings, size_t warnings_size) {
  struct line line = {warnings, warnings_size, 0};
  read_environment(config, &line);
}

void rp_config_from_environment(struct rp_config *config, char *warnings, size_t warnings_size) {
  struct line line = {warnings, warnings_size, 0};
  read_environment(config, &line);
  settle(config, &line);
}
