/* Reads a schedule from stdin and writes it to stdout: unchanged, or lowered as a version of torch does.
 *
 *   schedule_text print | lower-2.6 | lower-2.10 | lower-2.15
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/schedule.h"

static int refuse(const struct rp_schedule_error *error) {
  fprintf(stderr, "row %zu, column %zu: %s: %s\n", error->row, error->column, error->token, error->message);
  return 1;
}

static char *read_all(size_t *length) {
  size_t capacity = 1 << 16, got;
  char *text = malloc(capacity);
  *length = 0;
  while (text && (got = fread(text + *length, 1, capacity - *length, stdin)) > 0) {
    *length += got;
    if (*length < capacity) continue;
    char *grown = realloc(text, capacity *= 2);
    if (!grown) free(text);
    text = grown;
  }
  return text;
}

static int lowering_of(const char *name) {
  static const char *const names[] = {"lower-2.6", "lower-2.10", "lower-2.15"};
  for (int i = 0; i < 3; i++)
    if (strcmp(name, names[i]) == 0) return i;
  return -1;
}

int main(int argc, char **argv) {
  struct rp_schedule s;
  struct rp_schedule_error error = {0};
  size_t length;
  char *text = argc == 2 ? read_all(&length) : NULL;
  if (!text) return 2;
  rp_status status = rp_schedule_parse(text, length, &s, &error);
  free(text);
  if (status) return refuse(&error);
  int lowering = lowering_of(argv[1]);
  status = rp_schedule_check(&s, &error);
  if (!status && lowering >= 0) status = rp_schedule_lower_as(&s, (enum rp_lowering)lowering, &error);
  if (!status) status = rp_schedule_check(&s, &error);
  if (!status) status = rp_schedule_print(&s, &text, &length);
  rp_schedule_fini(&s);
  if (status) return refuse(&error);
  fwrite(text, 1, length, stdout);
  free(text);
  return fflush(stdout) == 0 ? 0 : 2;
}
