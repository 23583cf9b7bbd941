/* Members of reports and text for terminals. Reports come from files: any member may be missing or wrong. */
#include "agent/cmd_report_text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *rp__text_of(const json_t *object, const char *key, const char *otherwise) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : otherwise;
}

uint64_t rp__count_of(const json_t *object, const char *key) {
  json_int_t value = json_integer_value(json_object_get(object, key));
  return value > 0 ? (uint64_t)value : 0;
}

uint64_t rp__add(uint64_t sum, uint64_t more) {
  return more > INT64_MAX - sum ? INT64_MAX : sum + more;
}

int64_t rp__add_signed(int64_t sum, int64_t more) {
  int64_t out;
  if (!__builtin_add_overflow(sum, more, &out)) return out;
  return more > 0 ? INT64_MAX : INT64_MIN;
}

const char *rp__plain_text(const char *text, char *out, size_t out_size) {
  snprintf(out, out_size, "%s", text);
  rp_cmd_plain(out);
  return out;
}

const char *rp__format_bytes(uint64_t bytes, char *out, size_t out_size) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
    value /= 1024;
  snprintf(out, out_size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return out;
}

const char *rp__format_signed_bytes(int64_t bytes, char *out, size_t out_size) {
  if (bytes >= 0) return rp__format_bytes((uint64_t)bytes, out, out_size);
  out[0] = '-';
  (void)rp__format_bytes(-(uint64_t)bytes, out + 1, out_size - 1);
  return out;
}

const char *rp__format_integer(const json_t *object, const char *key, char *out, size_t out_size) {
  const json_t *value = json_object_get(object, key);
  snprintf(out, out_size, json_is_integer(value) ? "%lld" : "-", (long long)json_integer_value(value));
  return out;
}

const char *rp__format_seconds(double seconds, char *out, size_t out_size) {
  const char *unit = seconds >= 1 ? "s" : seconds >= 1e-3 ? "ms" : "us";
  double shown = seconds >= 1 ? seconds : seconds >= 1e-3 ? seconds * 1e3 : seconds * 1e6;
  snprintf(out, out_size, "%.1f %s", shown, unit);
  return out;
}

const char *rp__format_time(double unix_seconds, char *out, size_t out_size) {
  bool sane = unix_seconds > 0 && unix_seconds < 1e11; /* a file can say anything */
  time_t seconds = sane ? (time_t)unix_seconds : 0;
  struct tm broken;
  if (!sane || !gmtime_r(&seconds, &broken) || !strftime(out, out_size, "%Y-%m-%d %H:%M:%SZ", &broken))
    snprintf(out, out_size, "?");
  return out;
}

void rp__format_process(const json_t *report, char *rank, char *process, size_t size) {
  const json_t *identity = json_object_get(report, "process");
  (void)rp__format_integer(identity, "rank", rank, size);
  snprintf(process, size, "%.40s:%llu", rp__text_of(identity, "host", "?"),
           (unsigned long long)rp__count_of(identity, "pid"));
  rp_cmd_plain(process);
}

json_t *rp__json_text(const char *text) {
  char cut[1024];
  json_t *json = json_string(text);
  if (json) return json;
  snprintf(cut, sizeof cut, "%s", text);
  for (size_t length = strlen(cut); !json && length > 0; json = json_string(cut))
    cut[--length] = '\0'; /* it was cut inside a character */
  return json ? json : json_string("");
}
