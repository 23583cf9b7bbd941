/** @file text.h
 * Messages and tokens without stdio: text that grows inside a buffer of the caller and is cut where the
 * buffer ends. Pure; one object belongs to one thread at a time.
 */
#ifndef RP_POOL_TEXT_H
#define RP_POOL_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/** Text in `at`, which always ends with a NUL unless it has no room at all. */
struct rp_text {
  char *at;
  size_t size;   /**< of the buffer */
  size_t length; /**< that the whole text has, without the NUL; at least `size` if it was cut */
};

/** Begins an empty text in `out_size` bytes; `out` may be NULL if there are none. */
void rp_text_init(struct rp_text *text, char *out, size_t out_size);
/** Appends `length` bytes. */
void rp_text_bytes(struct rp_text *text, const char *bytes, size_t length);
/** Appends a string. */
void rp_text_string(struct rp_text *text, const char *string);
/** Appends a number in decimal. */
void rp_text_number(struct rp_text *text, int64_t number);
/** Appends one byte of foreign text: itself if it is printable ASCII, else as "\x1f". */
void rp_text_escaped(struct rp_text *text, unsigned char byte);
/** Appends by a format of %s, %.*s, %d, %u, %zu and %%; any other directive ends the text with "%?". */
void rp_text_format(struct rp_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** The same with its arguments in a list. */
void rp_text_vformat(struct rp_text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

#endif
