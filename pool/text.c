/* Text in bounded buffers: what the messages of the core are made of. */
#include "pool/text.h"

#include <stdbool.h>
#include <string.h>

void rp_text_init(struct rp_text *text, char *out, size_t out_size) {
  *text = (struct rp_text){out, out_size, 0};
  if (out_size) out[0] = 0;
}

void rp_text_bytes(struct rp_text *text, const char *bytes, size_t length) {
  if (text->length + 1 < text->size) {
    size_t room = text->size - 1 - text->length, taken = length < room ? length : room;
    memcpy(text->at + text->length, bytes, taken);
    text->at[text->length + taken] = 0;
  }
  text->length += length;
}

void rp_text_string(struct rp_text *text, const char *string) {
  rp_text_bytes(text, string, strlen(string));
}

static void append_unsigned(struct rp_text *text, uint64_t number) {
  char digits[20]; /* of UINT64_MAX */
  size_t first = sizeof(digits);
  do
    digits[--first] = (char)('0' + number % 10);
  while (number /= 10);
  rp_text_bytes(text, digits + first, sizeof(digits) - first);
}

void rp_text_number(struct rp_text *text, int64_t number) {
  if (number < 0) rp_text_bytes(text, "-", 1);
  append_unsigned(text, number < 0 ? -(uint64_t)number : (uint64_t)number);
}

void rp_text_escaped(struct rp_text *text, unsigned char byte) {
  static const char hex[] = "0123456789abcdef";
  if (byte >= 0x20 && byte < 0x7f)
    rp_text_bytes(text, (const char *)&byte, 1);
  else
    rp_text_bytes(text, (const char[]){'\\', 'x', hex[byte >> 4], hex[byte & 15]}, 4);
}

/* At most `most` bytes of a string that may lack its NUL behind them. */
static void append_prefix(struct rp_text *text, const char *string, int most) {
  rp_text_bytes(text, string, strnlen(string, most < 0 ? 0 : (size_t)most));
}

static bool starts(const char *text, const char *with) {
  return strncmp(text, with, strlen(with)) == 0;
}

void rp_text_vformat(struct rp_text *text, const char *format, va_list arguments) {
  for (const char *percent; (percent = strchr(format, '%'));) {
    rp_text_bytes(text, format, (size_t)(percent - format));
    format = percent + 2;
    if (starts(percent, "%s")) {
      rp_text_string(text, va_arg(arguments, const char *));
    } else if (starts(percent, "%d")) {
      rp_text_number(text, va_arg(arguments, int));
    } else if (starts(percent, "%u")) {
      append_unsigned(text, va_arg(arguments, unsigned));
    } else if (starts(percent, "%zu")) {
      append_unsigned(text, va_arg(arguments, size_t));
      format = percent + 3;
    } else if (starts(percent, "%.*s")) {
      int most = va_arg(arguments, int);
      append_prefix(text, va_arg(arguments, const char *), most);
      format = percent + 4;
    } else if (starts(percent, "%%")) {
      rp_text_bytes(text, "%", 1);
    } else { /* the type of its argument is unknown, and so are all behind it */
      rp_text_bytes(text, "%?", 2);
      return;
    }
  }
  rp_text_string(text, format);
}

void rp_text_format(struct rp_text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  rp_text_vformat(text, format, arguments);
  va_end(arguments);
}
