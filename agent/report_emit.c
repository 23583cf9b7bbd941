/* Building blocks of the report's JSON: one flag remembers that something failed, so that nobody has to look
 * before the end. */
#include "agent/report_emit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct rp__emit rp__emit_begin(bool *failed) {
  struct rp__emit emit = {json_object(), failed};
  if (!emit.object) *failed = true;
  return emit;
}

void rp__put(struct rp__emit *emit, const char *key, json_t *value) {
  if (json_object_set_new(emit->object, key, value) != 0) *emit->failed = true;
}

void rp__append(json_t *array, json_t *value, bool *failed) {
  if (json_array_append_new(array, value) != 0) *failed = true;
}

void rp__put_u64(struct rp__emit *emit, const char *key, uint64_t value) {
  rp__put(emit, key, json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value));
}

void rp__put_u64_or_null(struct rp__emit *emit, const char *key, uint64_t value) {
  if (value)
    rp__put_u64(emit, key, value);
  else
    rp__put(emit, key, json_null());
}

void rp__put_int_or_null(struct rp__emit *emit, const char *key, int value) {
  rp__put(emit, key, value < 0 ? json_null() : json_integer(value));
}

void rp__put_real(struct rp__emit *emit, const char *key, double value) {
  rp__put(emit, key, isfinite(value) ? json_real(value) : json_null());
}

void rp__put_bool(struct rp__emit *emit, const char *key, bool value) {
  rp__put(emit, key, json_boolean(value));
}

void rp__put_hex(struct rp__emit *emit, const char *key, uint64_t value) {
  char text[2 + 16 + 1];
  snprintf(text, sizeof text, "0x%" PRIx64, value);
  rp__put(emit, key, json_string(text));
}

void rp__put_hex_or_null(struct rp__emit *emit, const char *key, uint64_t value) {
  if (value)
    rp__put_hex(emit, key, value);
  else
    rp__put(emit, key, json_null());
}

/* Length of the well-formed UTF-8 sequence at `s`, 0 if there is none (overlong forms, surrogates and code
 * points past U+10FFFF are not well-formed). Stops at the NUL, which is no continuation byte. */
static size_t utf8_sequence(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  for (size_t i = 1; i < length; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
  if (s[0] == 0xed && s[1] > 0x9f) return 0;
  if (s[0] == 0xf0 && s[1] < 0x90) return 0;
  if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
  return length;
}

void rp__put_text(struct rp__emit *emit, const char *key, const char *text) {
  static const char hex[] = "0123456789abcdef";
  const unsigned char *in = (const unsigned char *)(text ? text : "");
  char *clean = malloc(4 * strlen((const char *)in) + 1);
  if (!clean) {
    *emit->failed = true;
    return;
  }
  size_t used = 0;
  while (*in) {
    size_t length = utf8_sequence(in);
    if (length) {
      memcpy(clean + used, in, length);
      used += length;
      in += length;
    } else {
      clean[used++] = '\\';
      clean[used++] = 'x';
      clean[used++] = hex[*in >> 4];
      clean[used++] = hex[*in & 15];
      in++;
    }
  }
  rp__put(emit, key, json_stringn(clean, used));
  free(clean);
}

void rp__put_text_or_null(struct rp__emit *emit, const char *key, const char *text) {
  if (text && text[0])
    rp__put_text(emit, key, text);
  else
    rp__put(emit, key, json_null());
}
