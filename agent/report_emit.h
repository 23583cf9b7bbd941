/** @file report_emit.h
 * Private to the report's writer: JSON objects under construction, and how quantities, addresses and text
 * from outside are written. Not thread-safe for one object.
 */
#ifndef RP_AGENT_REPORT_EMIT_H
#define RP_AGENT_REPORT_EMIT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/** An object under construction. One flag is shared by all objects of a report and tested once, at the end.
 */
struct rp__emit {
  json_t *object;
  bool *failed;
};

struct rp__emit rp__emit_begin(bool *failed);
/** Adds `value`, which it takes over, also NULL (then `failed` is set). */
void rp__put(struct rp__emit *emit, const char *key, json_t *value);
/** The same to an array. */
void rp__append(json_t *array, json_t *value, bool *failed);
/** Cut to what JSON readers take for an integer. */
void rp__put_u64(struct rp__emit *emit, const char *key, uint64_t value);
/** Zero is "not seen": null. */
void rp__put_u64_or_null(struct rp__emit *emit, const char *key, uint64_t value);
/** Negative is "not known": null. */
void rp__put_int_or_null(struct rp__emit *emit, const char *key, int value);
/** What is not finite is null. */
void rp__put_real(struct rp__emit *emit, const char *key, double value);
void rp__put_bool(struct rp__emit *emit, const char *key, bool value);
/** "0x…", because JSON readers round large integers. */
void rp__put_hex(struct rp__emit *emit, const char *key, uint64_t value);
void rp__put_hex_or_null(struct rp__emit *emit, const char *key, uint64_t value);
/** Text from outside: bytes that are not UTF-8 become "\xNN", a backslash stays as it is. NULL is "". */
void rp__put_text(struct rp__emit *emit, const char *key, const char *text);
/** NULL and "" are null. */
void rp__put_text_or_null(struct rp__emit *emit, const char *key, const char *text);

#endif
