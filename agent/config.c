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
#define MAX_SLACK 1024u
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

static rp_status parse_mode(struct rp_config *config, const char *value) {
  if (strcmp(value, "observe") == 0)
    config->mode = RP_MODE_OBSERVE;
  else if (strcmp(value, "off") == 0)
    config->mode = RP_MODE_OFF;
  else
    return RP_ERROR_INVALID;
  return RP_OK;
}

/* A relative path is made absolute here, since the program may change its working directory later. */
static rp_status parse_report_dir(struct rp_config *config, const char *value) {
  char full[sizeof config->report_dir];
  size_t used = 0;
  if (value[0] == '\0') return RP_ERROR_INVALID;
  if (value[0] != '/') {
    if (!getcwd(full, sizeof full)) return RP_ERROR_INVALID;
    used = strlen(full);
  }
  int wrote = snprintf(full + used, sizeof full - used, "%s%s", used ? "/" : "", value);
  if (wrote < 0 || (size_t)wrote >= sizeof full - used) return RP_ERROR_INVALID;
  memcpy(config->report_dir, full, sizeof full);
  return RP_OK;
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

static rp_status parse_min_bytes(struct rp_config *config, const char *value) {
  uint64_t bytes;
  if (rp_parse_bytes(value, &bytes) != RP_OK || bytes == 0 || bytes > INT64_MAX) return RP_ERROR_INVALID;
  config->min_bytes = bytes;
  return RP_OK;
}

static rp_status parse_slack(struct rp_config *config, const char *value) {
  const char *end;
  uint64_t whole;
  double fraction;
  if (parse_decimal(value, &end, &whole, &fraction) != RP_OK || *end != '\0') return RP_ERROR_INVALID;
  if (strchr(value, '.') || whole > MAX_SLACK) return RP_ERROR_INVALID;
  config->slack = (uint32_t)whole;
  return RP_OK;
}

static rp_status parse_verbose(struct rp_config *config, const char *value) {
  if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0) return RP_ERROR_INVALID;
  config->verbose = value[0] == '1';
  return RP_OK;
}

static rp_status parse_cupti(struct rp_config *config, const char *value) {
  if (strcmp(value, "always") == 0)
    config->cupti = RP_CUPTI_ALWAYS;
  else if (strcmp(value, "off") == 0)
    config->cupti = RP_CUPTI_OFF;
  else
    return RP_ERROR_INVALID;
  return RP_OK;
}

static const struct variable variables[] = {
    {{"RECVPOOL_MODE", "observe | off", "observe", "trace and report, or do nothing"},
     "observe or off",
     parse_mode},
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
    {{"RECVPOOL_SLACK", "COUNT", "2", "slots beyond the measured depth, 0 to 1024"},
     "a whole number, 0 to 1024",
     parse_slack},
    {{"RECVPOOL_CUPTI", "always | off", "always", "hold the only CUPTI subscription, or leave it to others"},
     "always or off",
     parse_cupti},
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
  config->slack = 2;
  config->cupti = RP_CUPTI_ALWAYS;
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

void rp_config_from_environment(struct rp_config *config, char *warnings, size_t warnings_size) {
  struct line line = {warnings, warnings_size, 0};
  if (warnings_size) warnings[0] = '\0';
  rp_config_defaults(config);
  for (char **entry = environ; entry && *entry; entry++)
    if (strncmp(*entry, PREFIX, sizeof PREFIX - 1) == 0) read_one(config, *entry, &line);
}
