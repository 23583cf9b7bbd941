/* Reader and writer of torch's schedule files: CSV without header, one row per rank, one cell per action.
 *
 *   cell     = "" | simple | compound
 *   simple   = stage type [microbatch]                    2F0  0UNSHARD  3SEND_B12
 *   compound = "(" simple *(";" simple) ")" OVERLAP_F_B   (0F3;7B1)OVERLAP_F_B
 */
#include "pool/schedule_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pool/text.h"

/* Names that torch has used. BW is the whole backward in trees of late 2024, where B was its input half. */
enum { NAME_BW = RP_ACTION_WAIT_REDUCE_GRAD + 1 };

struct span {
  const char *at;
  size_t length;
};

struct reader {
  struct span text;
  size_t at;
  size_t row, column;
  struct rp__row *rows;
  size_t row_count, row_capacity;
  uint32_t groups; /* compounds in the current row */
  int32_t max_stage, max_microbatch;
  bool has_transfers; /* anything that is not a compute action */
  bool has_input_half, has_weight_half, has_bw;
  size_t idle_row, idle_column; /* first empty cell, SIZE_MAX if none */
  struct rp_schedule_error *error;
};

/* --- errors --- */

static void copy_token(struct rp_schedule_error *error, struct span token) {
  struct rp_text text;
  rp_text_init(&text, error->token, sizeof(error->token));
  for (size_t i = 0; i < token.length && text.length + 4 < sizeof(error->token); i++)
    rp_text_escaped(&text, (unsigned char)token.at[i]);
}

__attribute__((format(printf, 3, 4))) static rp_status refuse(struct reader *r, struct span token,
                                                              const char *format, ...) {
  if (!r->error) return RP_ERROR_SYNTAX;
  struct rp_text text;
  va_list arguments;
  rp_text_init(&text, r->error->message, sizeof(r->error->message));
  va_start(arguments, format);
  rp_text_vformat(&text, format, arguments);
  va_end(arguments);
  r->error->row = r->row;
  r->error->column = r->column;
  copy_token(r->error, token);
  return RP_ERROR_SYNTAX;
}

/* --- one token --- */

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
static bool is_name(char c) {
  return (c >= 'A' && c <= 'Z') || c == '_';
}

static struct span trim(struct span s) {
  while (s.length && is_blank(s.at[0]))
    s.at++, s.length--;
  while (s.length && is_blank(s.at[s.length - 1]))
    s.length--;
  return s;
}

/* Takes leading digits off `s`; false if the number is above `limit`. */
static bool take_number(struct span *s, int32_t limit, int32_t *out) {
  int64_t value = 0;
  while (s->length && is_digit(s->at[0])) {
    value = value * 10 + (s->at[0] - '0');
    if (value > limit) return false;
    s->at++, s->length--;
  }
  *out = (int32_t)value;
  return true;
}

static bool span_is(struct span s, const char *text) {
  return s.length == strlen(text) && memcmp(s.at, text, s.length) == 0;
}

/* Kind by name, NAME_BW, or 0. */
static int kind_of(struct span name) {
  if (name.length == 1) {
    switch (name.at[0]) {
    case 'F':
      return RP_ACTION_FORWARD;
    case 'B':
      return RP_ACTION_BACKWARD;
    case 'I':
      return RP_ACTION_BACKWARD_INPUT;
    case 'W':
      return RP_ACTION_BACKWARD_WEIGHT;
    default:
      return 0;
    }
  }
  for (int kind = RP_ACTION_SEND_F; kind <= RP_ACTION_WAIT_REDUCE_GRAD; kind++)
    if (span_is(name, rp_action_kind_token((enum rp_action_kind)kind))) return kind;
  return span_is(name, "BW") ? NAME_BW : 0;
}

static rp_status refuse_name(struct reader *r, struct span token, struct span name) {
  int shown = name.length < 40 ? (int)name.length : 40;
  if (span_is(name, "OVERLAP_F_B"))
    return refuse(r, token, "OVERLAP_F_B stands behind its actions: write (2F0;5B1)OVERLAP_F_B");
  if (span_is(name, "SEND") || span_is(name, "SEND_") || span_is(name, "RECV") || span_is(name, "RECV_"))
    return refuse(r, token, "a transfer needs its direction: SEND_F, SEND_B, RECV_F or RECV_B");
  return refuse(
      r, token,
      "no action is called '%.*s'; known are F B I W SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD "
      "WAIT_SEND_F WAIT_SEND_B WAIT_REDUCE_GRAD",
      shown, name.at);
}

static void note_kind(struct reader *r, enum rp_action_kind kind) {
  if (!rp__kind_is_compute(kind)) r->has_transfers = true;
  if (kind == RP_ACTION_BACKWARD_INPUT) r->has_input_half = true;
  if (kind == RP_ACTION_BACKWARD_WEIGHT) r->has_weight_half = true;
}

static rp_status refuse_rest(struct reader *r, struct span token, struct span rest) {
  if (rest.at[0] == '_' || rest.at[0] == ' ')
    return refuse(r, token, "two actions in one cell; put each into its own, separated by a comma");
  if (rest.at[0] == '-' || rest.at[0] == '.')
    return refuse(r, token, "a microbatch is a whole number without sign");
  return refuse(r, token,
                "there is something behind the action; write only stage, type and microbatch, as in 2F0");
}

static rp_status read_simple(struct reader *r, struct span token, uint32_t group) {
  struct span rest = token, name;
  int32_t stage, microbatch = -1;
  if (!rest.length || !is_digit(rest.at[0]))
    return refuse(r, token, "an action starts with the number of its stage, as in 2F0");
  if (!take_number(&rest, RP__MAX_STAGES - 1, &stage))
    return refuse(r, token, "the stage number is above %d", RP__MAX_STAGES - 1);
  name.at = rest.at;
  while (rest.length && is_name(rest.at[0]))
    rest.at++, rest.length--;
  name.length = (size_t)(rest.at - name.at);
  if (!name.length) return refuse(r, token, "the type of the action is missing, as the F in 2F0");
  int kind = kind_of(name);
  if (!kind) return refuse_name(r, token, name);
  bool has_number = rest.length && is_digit(rest.at[0]);
  if (has_number && !take_number(&rest, RP__MAX_MICROBATCHES - 1, &microbatch))
    return refuse(r, token, "the microbatch number is above %d", RP__MAX_MICROBATCHES - 1);
  if (rest.length) return refuse_rest(r, token, rest);
  r->has_bw |= kind == NAME_BW;
  enum rp_action_kind action = kind == NAME_BW ? RP_ACTION_BACKWARD : (enum rp_action_kind)kind;
  if (has_number != rp__kind_has_microbatch(action))
    return refuse(r, token,
                  has_number ? "%s takes no microbatch; leave the number off"
                             : "%s needs a microbatch, as in 2F0",
                  rp_action_kind_token(action));
  if (group && !rp__kind_is_compute(action))
    return refuse(r, token, "only F, B, I and W can stand in an OVERLAP_F_B");
  note_kind(r, action);
  if (stage > r->max_stage) r->max_stage = stage;
  if (microbatch > r->max_microbatch) r->max_microbatch = microbatch;
  /* Until the whole file is known, BW keeps apart from B in the sign of the stage. */
  rp__row_push(&r->rows[r->row], action, kind == NAME_BW ? ~stage : stage, microbatch, group);
  return RP_OK;
}

static rp_status read_compound(struct reader *r, struct span token) {
  const char *close = memchr(token.at, ')', token.length);
  if (!close) return refuse(r, token, "the closing ')' of the compound action is missing");
  struct span body = {token.at + 1, (size_t)(close - token.at - 1)};
  struct span name = trim((struct span){close + 1, token.length - (size_t)(close + 1 - token.at)});
  if (memchr(body.at, '(', body.length)) return refuse(r, token, "compound actions cannot be nested");
  if (!span_is(name, "OVERLAP_F_B"))
    return refuse(r, token,
                  "a compound action ends with OVERLAP_F_B and nothing else, as in (2F0;5B1)OVERLAP_F_B");
  if (!trim(body).length)
    return refuse(r, token, "the compound action is empty; put its actions between ( and )");
  uint32_t group = ++r->groups;
  size_t members = 0;
  for (bool more = true; more;) {
    const char *semicolon = memchr(body.at, ';', body.length);
    struct span part = {body.at, semicolon ? (size_t)(semicolon - body.at) : body.length};
    more = semicolon != NULL;
    if (++members > RP__MAX_COMPOUND)
      return refuse(r, token, "more than %d actions in one compound", RP__MAX_COMPOUND);
    if (!trim(part).length) return refuse(r, token, "an action is missing between ';' in the compound");
    rp_status status = read_simple(r, trim(part), group);
    if (status) return status;
    if (more) body = (struct span){semicolon + 1, body.length - part.length - 1};
  }
  return RP_OK;
}

/* --- cells and rows --- */

static bool start_row(struct reader *r) {
  if (r->row_count == r->row_capacity) {
    size_t capacity = r->row_capacity ? r->row_capacity * 2 : 16;
    struct rp__row *rows = realloc(r->rows, capacity * sizeof(*rows));
    if (!rows) return false;
    r->rows = rows;
    r->row_capacity = capacity;
  }
  r->rows[r->row_count] = (struct rp__row){0};
  r->row = r->row_count++;
  r->column = 0;
  r->groups = 0;
  return true;
}

static bool ends_cell(char c) {
  return c == ',' || c == '\n' || c == '\r';
}

/* The next cell without its quotes; the reader is left at the separator. */
static rp_status take_cell(struct reader *r, struct span *cell) {
  const char *text = r->text.at;
  size_t begin = r->at;
  bool quoted = begin < r->text.length && text[begin] == '"';
  if (quoted) {
    const char *end = memchr(text + begin + 1, '"', r->text.length - begin - 1);
    struct span shown = {text + begin, r->text.length - begin};
    if (!end) return refuse(r, shown, "the closing quote of this cell is missing; actions need no quotes");
    r->at = (size_t)(end - text) + 1;
    *cell = trim((struct span){text + begin + 1, r->at - begin - 2});
    if (r->at < r->text.length && !ends_cell(text[r->at]))
      return refuse(r, shown, "there is something behind the closing quote; actions need no quotes");
    return RP_OK;
  }
  while (r->at < r->text.length && !ends_cell(text[r->at]))
    r->at++;
  *cell = trim((struct span){text + begin, r->at - begin});
  return RP_OK;
}

static rp_status read_cell(struct reader *r) {
  struct span cell;
  rp_status status = take_cell(r, &cell);
  if (status) return status;
  if (!cell.length) {
    if (r->idle_row == SIZE_MAX) r->idle_row = r->row, r->idle_column = r->column;
    return RP_OK;
  }
  for (size_t i = 0; i < cell.length; i++) {
    unsigned char c = (unsigned char)cell.at[i];
    if (c >= 0x20 && c < 0x7f) continue;
    char shown[8]; /* as \\x1f */
    struct rp_text text;
    rp_text_init(&text, shown, sizeof(shown));
    rp_text_escaped(&text, c);
    return refuse(r, cell, "byte 0%s: this is not a schedule file, which is plain text such as 0F0,0F1",
                  shown + 1);
  }
  return cell.at[0] == '(' ? read_compound(r, cell) : read_simple(r, cell, 0);
}

static bool at_line_end(const struct reader *r) {
  return r->at >= r->text.length || r->text.at[r->at] == '\n' || r->text.at[r->at] == '\r';
}

static void skip_line_end(struct reader *r) {
  if (r->at < r->text.length && r->text.at[r->at] == '\r') {
    r->at++;
    if (r->at < r->text.length && r->text.at[r->at] == '\n') r->at++;
  } else if (r->at < r->text.length) {
    r->at++;
  }
}

static rp_status read_row(struct reader *r) {
  if (r->row_count == RP__MAX_STAGES)
    return refuse(r, (struct span){"", 0}, "more than %d rows", RP__MAX_STAGES);
  if (!start_row(r)) return RP_ERROR_NO_MEMORY;
  while (!at_line_end(r)) {
    rp_status status = read_cell(r);
    if (status) return status;
    if (at_line_end(r)) break;
    r->at++; /* the comma */
    r->column++;
    if (at_line_end(r) && r->idle_row == SIZE_MAX) r->idle_row = r->row, r->idle_column = r->column;
  }
  skip_line_end(r);
  return r->rows[r->row].failed ? RP_ERROR_NO_MEMORY : RP_OK;
}

/* --- the whole file --- */

static rp_status check_start(struct reader *r) {
  const unsigned char *t = (const unsigned char *)r->text.at;
  struct span none = {"", 0};
  if (r->text.length == 0) return refuse(r, none, "the file is empty; it needs one row of actions per rank");
  if (r->text.length >= 3 && t[0] == 0xef && t[1] == 0xbb && t[2] == 0xbf)
    return refuse(r, none,
                  "the file starts with a byte order mark, which torch cannot read either; save it without");
  if (r->text.length >= 2 && ((t[0] == 0xff && t[1] == 0xfe) || (t[0] == 0xfe && t[1] == 0xff)))
    return refuse(r, none, "the file is UTF-16; save it as plain text");
  return RP_OK;
}

/* What B means depends on the rest of the file. torch 2.5 wrote B and W for the two halves; some later trees
 * wrote BW for the whole and B for the input half; since 2.6 B is the whole and I the input half. */
static void settle_backwards(struct reader *r, struct rp_schedule *s, const uint8_t *weight) {
  for (int32_t rank = 0; rank < s->ranks; rank++) {
    for (size_t i = 0; i < s->rank[rank].count; i++) {
      struct rp_action *a = &s->rank[rank].actions[i];
      bool whole = a->stage < 0;
      if (whole) a->stage = ~a->stage;
      if (a->kind != RP_ACTION_BACKWARD || whole) continue;
      if (r->has_bw || (weight && weight[rp__pair(s, a->stage, a->microbatch)]))
        a->kind = RP_ACTION_BACKWARD_INPUT;
    }
  }
}

/* Marks the pairs that have a W, for files in the manner of 2.5. NULL if there is nothing to mark or no sane
 * table. */
static uint8_t *mark_weights(const struct reader *r, const struct rp_schedule *s) {
  if (r->has_bw || r->has_input_half || !r->has_weight_half) return NULL;
  uint8_t *weight = calloc((size_t)s->stages * (size_t)s->microbatches, 1);
  for (int32_t rank = 0; weight && rank < s->ranks; rank++)
    for (size_t i = 0; i < s->rank[rank].count; i++) {
      const struct rp_action *a = &s->rank[rank].actions[i];
      if (a->kind == RP_ACTION_BACKWARD_WEIGHT) weight[rp__pair(s, a->stage, a->microbatch)] = 1;
    }
  return weight;
}

static void assign_ranks(struct rp_schedule *s) {
  for (int32_t rank = 0; rank < s->ranks; rank++)
    for (size_t i = 0; i < s->rank[rank].count; i++) {
      int32_t *home = &s->stage_rank[s->rank[rank].actions[i].stage];
      if (*home < 0) *home = rank;
    }
}

/* Hands the rows over to a schedule. The reader's rows are gone afterwards, whatever is returned. */
static rp_status finish(struct reader *r, struct rp_schedule *out) {
  struct rp_schedule s;
  size_t actions = 0;
  for (size_t i = 0; i < r->row_count; i++)
    actions += r->rows[i].count;
  struct rp__row *rows = r->rows;
  r->rows = NULL;
  /* As many pairs as actions at most, or a single absurd number would size every table. */
  uint64_t pairs = (uint64_t)(r->max_stage + 1) * (uint64_t)(r->max_microbatch + 1);
  rp_status status = rp__schedule_init(&s, (int32_t)r->row_count, r->max_stage + 1, r->max_microbatch + 1);
  if (status) {
    rp__rows_free(rows, (int32_t)r->row_count);
    return status;
  }
  status = rp__schedule_take_rows(&s, rows);
  uint8_t *weight = status || pairs > actions ? NULL : mark_weights(r, &s);
  if (!status) {
    settle_backwards(r, &s, weight);
    assign_ranks(&s);
    s.lowered = r->has_transfers;
    *out = s;
  } else {
    rp_schedule_fini(&s);
  }
  free(weight);
  return status;
}

static rp_status read_all(struct reader *r) {
  rp_status status = check_start(r);
  while (!status && r->at < r->text.length)
    status = read_row(r);
  if (status) return status;
  struct span none = {"", 0};
  if (r->max_stage < 0) {
    r->row = r->column = SIZE_MAX;
    return refuse(r, none,
                  "the file has no actions; it needs one row of actions per rank, as 0F0,0F1,0B0,0B1");
  }
  if (r->has_transfers && r->idle_row != SIZE_MAX) {
    r->row = r->idle_row;
    r->column = r->idle_column;
    return refuse(r, none,
                  "empty cell in a schedule with transfers, which torch refuses; remove the extra comma");
  }
  return RP_OK;
}

rp_status rp_schedule_parse(const char *text, size_t length, struct rp_schedule *out,
                            struct rp_schedule_error *error) {
  struct reader r = {.text = {text, length},
                     .max_stage = -1,
                     .max_microbatch = -1,
                     .idle_row = SIZE_MAX,
                     .idle_column = SIZE_MAX,
                     .error = error};
  rp_status status = read_all(&r);
  if (!status && r.max_microbatch < 0) {
    r.row = r.column = SIZE_MAX;
    status = refuse(&r, (struct span){"", 0},
                    "the file has no compute actions; it needs F and B for every microbatch");
  }
  if (!status) return finish(&r, out);
  if (status == RP_ERROR_NO_MEMORY)
    rp__schedule_fail(error, status, SIZE_MAX, SIZE_MAX, NULL, "not enough memory to read the schedule");
  rp__rows_free(r.rows, (int32_t)r.row_count);
  return status;
}

/* --- writer --- */

struct writer {
  char *text;
  size_t length, capacity;
};

static bool write_text(struct writer *w, const char *text, size_t length) {
  if (w->capacity - w->length <= length) {
    size_t capacity = (w->capacity + length) * 2 + 256;
    char *grown = realloc(w->text, capacity);
    if (!grown) return false;
    w->text = grown;
    w->capacity = capacity;
  }
  memcpy(w->text + w->length, text, length);
  w->length += length;
  w->text[w->length] = 0;
  return true;
}

static bool write_unit(struct writer *w, const struct rp_action *unit, size_t length) {
  bool compound = unit->group && rp__kind_is_compute(unit->kind), ok = true;
  if (compound) ok = write_text(w, "(", 1);
  for (size_t i = 0; i < length && ok; i++) {
    char token[64];
    int size = rp_action_format(&unit[i], token, sizeof(token));
    if (i) ok = write_text(w, compound ? ";" : ",", 1);
    if (ok) ok = write_text(w, token, (size_t)size);
  }
  return ok && (!compound || write_text(w, ")OVERLAP_F_B", strlen(")OVERLAP_F_B")));
}

rp_status rp_schedule_print(const struct rp_schedule *schedule, char **text, size_t *length) {
  struct writer w = {0};
  bool ok = write_text(&w, "", 0);
  for (int32_t r = 0; ok && r < schedule->ranks; r++) {
    const struct rp_rank_schedule *row = &schedule->rank[r];
    for (size_t i = 0, unit; ok && i < row->count; i += unit) {
      unit = rp__unit_length(row, i);
      ok = (i == 0 || write_text(&w, ",", 1)) && write_unit(&w, &row->actions[i], unit);
    }
    ok = ok && write_text(&w, "\r\n", 2); /* the line end of torch's own dump */
  }
  if (!ok) {
    free(w.text);
    return RP_ERROR_NO_MEMORY;
  }
  *text = w.text;
  *length = w.length;
  return RP_OK;
}
